"""Requests that the models of the gallery refuse, and what each is told."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image


@dataclass(frozen=True)
class Bad:
    """A request that is refused: what becomes of one input, and what is said about it."""

    model: str
    tensor: str
    change: Callable[[np.ndarray], np.ndarray]
    says: str


def put(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array.flat[0] = value
        return array

    return change


def picture(image: Image.Image) -> dict[str, np.ndarray]:
    content = io.BytesIO()
    image.save(content, "PNG")
    return {"picture": np.array([content.getvalue()], np.object_)}


def content(changed: bytes) -> Callable[[np.ndarray], np.ndarray]:
    return lambda _picture: np.array([changed], np.object_)


def many(columns: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda edges: edges[:, :1].repeat(columns, axis=1)


def blank(width: int, height: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda _picture: picture(Image.new("1", (width, height)))["picture"]


TEXT_FAULTS = (
    (content(b""), "text is empty"),
    (content(b" "), "text is empty"),
    (content(b"\xff\xfe"), "text is not UTF-8: byte 0 is 0xff"),
    (content(bytes(10**6)), "text has 1000000 bytes; at most 20000 are read"),
)
PICTURE_FAULTS = (
    (content(b""), "picture is empty"),
    (content(b"nothing of the kind"), "picture is none that OpenCV can read"),
    (content(b"P6 0 0 255\n"), "picture is none that OpenCV can read"),  # 0 x 0
    (blank(8000, 6300), "picture is damaged, or has more than 40 megapixels"),
    (blank(40_000, 100), "picture is 40000 x 100; at most 32766 pixels a side are read"),
    (lambda found: np.repeat(found, 2), "unexpected shape for input 'picture'"),
)
NEGATIVE = "has values that are negative or not finite"
BAD = (
    *(
        Bad(model, "text", change, says)
        for model in ("zero_shot", "recommend")
        for change, says in TEXT_FAULTS
    ),
    Bad("zero_shot", "labels", lambda found: found[:0], "labels has 0; 1 to 31 are compared"),
    Bad("zero_shot", "labels", lambda found: found.repeat(20), "labels has 60; 1 to 31 are"),
    Bad("zero_shot", "labels", content(b" "), "labels has one that is empty"),
    Bad("zero_shot", "labels", content(b"\xff"), "text is not UTF-8: byte 0 is 0xff"),
    *(
        Bad(model, "text", lambda found, change=change: change(found)[:, None], says)
        for model in ("sentence_bert", "sentence_cache")
        for change, says in TEXT_FAULTS
    ),
    *(
        Bad(model, tensor, change, says)
        for model, x, edges, papers in (
            ("gat", "x__0", "edgeindex__1", 40),
            ("graphsage", "x", "edges", 16),
        )
        for tensor, change, says in (
            (edges, put(papers), f"{edges} names paper {papers}; {x} has {papers}, counted from 0"),
            (edges, put(-1), f"{edges} names paper -1; {x} has {papers}, counted from 0"),
            (x, lambda found: found[:0], f"{x} has 0"),
            (x, put(np.nan), f"{x} {NEGATIVE}"),
            (x, lambda found: found[:, 1:], f"unexpected shape for input '{x}' for model"),
        )
    ),
    Bad("gat", "edgeindex__1", many(1_000_001), "edgeindex__1 has 1000001 edges; at most 1000000"),
    Bad("graphsage", "edges", many(200_001), "edges has 200001; at most 200000 are answered"),
    Bad("brain", "volume", put(np.nan), "volume has values that are not finite"),
    Bad("brain", "volume", lambda v: v[:8], "volume is 8 x 48 x 48; each side must have 16 to 400"),
    Bad("brain", "volume", lambda v: v[:0, :0, :0], "volume is 0 x 0 x 0; each side must have"),
    Bad("brain", "volume", lambda v: v[0], "unexpected shape for input 'volume' for model 'brain'"),
    Bad("event_image", "image", put(np.nan), "image has charges that are negative or not finite"),
    *(
        Bad("event_image", "image", cut, "unexpected shape for input 'image'")
        for cut in (lambda image: image[:, :, 1:], lambda image: image[:, :, :0, :0])
    ),
    *(Bad(model, "picture", *fault) for model in ("ocr", "ocr_bls") for fault in PICTURE_FAULTS),
    Bad("ocr_bls", "detector", content(b"x"), "detector is neither network nor contours"),
    Bad("hit_finder", "waveforms", lambda w: w[:0, :0], "waveforms is 0 x 0; 1 to 10000 wires of"),
    Bad("hit_finder", "waveforms", lambda w: w[:, :8], "waveforms is 80 x 8; 1 to 10000 wires of"),
    Bad("hit_finder", "waveforms", lambda w: w[0], "unexpected shape for input 'waveforms'"),
    # In the second of three events.
    Bad("electron_lifetime", "1/time", put(-1), f"time {NEGATIVE}"),
    Bad("electron_lifetime", "1/time", lambda time: time[1:], "time has 29 hits, charge 30"),
    Bad(
        "electron_lifetime",
        "1/charge",
        put(0),
        "charge has values that are not positive or not finite",
    ),
    Bad(
        "electron_lifetime",
        "1/charge",
        put(np.nan),
        "charge has values that are not positive or not",
    ),
)

# What the steps of ocr take, if they are asked by themselves.
SQUARE = np.float32([[[0, 0], [40, 0], [40, 40], [0, 40]]])
CROPS = {"crops": np.zeros((1, 3, 48, 160), np.float32)}
STEPS = {
    "ocr_crop": {"image": np.zeros((50, 400, 3), np.uint8), "boxes": SQUARE},
    "ocr_read": CROPS,
    "ocr_line": CROPS,
}
BAD_STEPS = (
    Bad("ocr_crop", "boxes", lambda b: 500 * b, "boxes has corners that are far outside of image"),
    Bad("ocr_crop", "boxes", lambda b: b.repeat(201, axis=0), "boxes has 201 lines; at most 200"),
    Bad("ocr_crop", "boxes", lambda b: 10 * b.repeat(60, axis=0), "boxes together have more than"),
    Bad(
        "ocr_crop", "image", lambda _: np.zeros((1, 32_767, 3), np.uint8), "image is 32767 x 1; at"
    ),
    Bad(
        "ocr_read", "crops", lambda c: c[..., :0], "crops is 1 x 3 x 48 x 0; up to 200 lines, 1 to"
    ),
    Bad("ocr_read", "crops", lambda c: c.repeat(11, axis=-1), "crops is 1 x 3 x 48 x 1760; up to"),
    Bad("ocr_line", "crops", put(np.nan), "crops has values that are not finite"),
)
