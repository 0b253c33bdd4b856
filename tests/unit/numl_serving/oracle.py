"""Models and events to compare with nugraph 24.7.1's own code: `numl_bench.reference24`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numl_bench.reference24 import Reference24
from numl_serving.event import Event
from numl_serving.shapes import weight_shapes
from numpy.typing import NDArray

from numl_formats.card import Head, ModelCard, NetworkSpec, PlaneNormalisation, Source, WeightsFile

KINDS = ("24.7.1", "per-plane", "nugraph2")
"""The generations of NuGraph3 before 25.4, and NuGraph2."""

UVY = ("u", "v", "y")

NORMALISATION = {
    "u": PlaneNormalisation((389.4, 172.9, 147.8, 4.56), (147.2, 78.0, 228.3, 2.22)),
    "v": PlaneNormalisation((368.8, 173.0, 154.1, 4.45), (145.3, 80.5, 282.3, 1.90)),
    "y": PlaneNormalisation((546.3, 172.8, 117.0, 4.16), (283.5, 74.0, 115.5, 1.46)),
}

_GAIN = {"24.7.1": 2.35, "per-plane": 2.5, "nugraph2": 2.5}


def card_of(
    kind: str, planes: Sequence[str] = UVY, features: Sequence[str] = ("integral", "rms")
) -> ModelCard:
    """Return the card of a model in nugraph's default widths, of one of `KINDS`.

    The position's two features come before ``features``.
    """
    nugraph2, first = kind == "nugraph2", kind == "24.7.1"
    norm = list(NORMALISATION.values())
    more = len(features) - 2
    classes = tuple("abcdefg" if kind == "per-plane" else "abcde")
    event_classes = tuple("abcd" if kind == "per-plane" else "abc")
    probabilities = "softmax" if first else "none"
    heads = [
        Head("semantic", "x_semantic", "hit", len(classes), probabilities, classes),
        Head("filter", "x_filter", "hit", 1, "sigmoid"),
    ]
    if not nugraph2:
        heads += [
            Head("event", "e", "event", len(event_classes), probabilities, event_classes),
            Head("vertex", "v", "event", 3),
        ]
    return ModelCard(
        network=NetworkSpec(
            kind="nugraph2" if nugraph2 else "nugraph3",
            generation="24.7.1" if nugraph2 else kind,
            iterations=5,
            hit_width=64 if nugraph2 else 128,
            nexus_width=16 if nugraph2 else 32,
            event_width=0 if nugraph2 else 32,
            classes=len(classes) if nugraph2 else 1,
            nexus_start="position" if first else "zeros",
            nexus="sum" if first else "concat",
        ),
        planes=tuple(planes),
        hit_features=("wire_position", "time_position", *features),
        position_scale=(0.3, 0.055),
        spacepoint_positions=first,
        normalisation={
            plane: PlaneNormalisation(mean + (0.5,) * more, std + (0.5,) * more)
            for plane, (mean, std) in zip(planes, 2 * norm, strict=False)
        },
        heads=tuple(heads),
        clustering=None,
        weights=WeightsFile("weights.safetensors", "0" * 64),
        source=Source("model.ckpt", "0" * 64),
    )


def random_weights(card: ModelCard, seed: int) -> dict[str, NDArray[np.float32]]:
    """Make random weights for a card.

    They are larger than those a training starts from: with smaller ones every hit gets nearly
    the same answer, whatever its edges, with larger ones rounding errors grow from iteration to
    iteration.
    """
    rng = np.random.default_rng(seed)
    spec = card.network
    gain = _GAIN["nugraph2" if spec.kind == "nugraph2" else spec.generation]
    weights = {}
    shapes = weight_shapes(card)
    for name, shape in shapes.items():
        inputs = shapes[f"{name.rsplit('.', 1)[0]}.weight"][-1]
        shared = spec.generation == "24.7.1" and spec.kind == "nugraph3" and "heads" not in name
        planes = 1 if shared else len(card.planes)
        shape = tuple(planes if size == -1 else size for size in shape)
        bound = gain / math.sqrt(inputs)
        weights[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    if spec.kind == "nugraph2":
        # Each class has a layer of its own: a block of the whole.
        own = np.repeat(np.eye(spec.classes), spec.hit_width, axis=1)
        weights["heads.semantic.weight"] *= math.sqrt(spec.classes) * own.astype(np.float32)
    return weights


def answer(reference: Reference24, event: Event) -> dict[str, NDArray[Any]]:
    """Run a reference on one event; returns arrays by output name."""
    return reference.network(reference.preprocess(event.tensors()), gradients=False)
