"""Small models with random weights, their directories, and events: nothing of nugraph is needed."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numl_serving.event import Event
from numl_serving.shapes import weight_shapes
from numpy.typing import NDArray
from safetensors.numpy import save

from numl_formats.card import Clustering, Head, ModelCard, NetworkSpec, Source, WeightsFile
from numl_formats.cardfile import dump_card
from numl_formats.contract import UVY, Schema

NUGRAPH3 = ModelCard(
    network=NetworkSpec(
        kind="nugraph3",
        generation="25.4",
        iterations=2,
        hit_width=8,
        nexus_width=4,
        event_width=4,
        classes=1,
        nexus_start="zeros",
        nexus="sum",
    ),
    planes=("u", "v", "y"),
    hit_features=("wire_position", "time_position", "integral", "rms"),
    position_scale=(0.3, 0.055),
    spacepoint_positions=False,
    normalisation=None,
    heads=(
        Head("semantic", "x_semantic", "hit", 3, "softmax", ("mip", "hip", "shower")),
        Head("filter", "x_filter", "hit", 1, "sigmoid"),
        Head("event", "e", "event", 4, "softmax", ("numu", "nue", "nutau", "nc")),
        Head("vertex", "v", "event", 3),
        Head("instance", "ox", "hit", 2),
    ),
    clustering=Clustering("x_i", "ox", 0.5, 2, "x_filter", "x_semantic", 2),
    weights=WeightsFile("weights.safetensors", "0" * 64),
    source=Source("small.ckpt", "0" * 64),
)
NUGRAPH2 = replace(
    NUGRAPH3,
    network=replace(
        NUGRAPH3.network,
        kind="nugraph2",
        generation="24.7.1",
        hit_width=6,
        event_width=0,
        classes=3,
        nexus="concat",
    ),
    heads=NUGRAPH3.heads[:2],
    clustering=None,
)
CARDS = {"nugraph3": NUGRAPH3, "nugraph2": NUGRAPH2}


def random_weights(card: ModelCard, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Return weights for a card; each plane has its own."""
    rng = np.random.default_rng(seed)
    planes = len(card.planes)
    return {
        name: rng.normal(0, 0.3, [planes if n == -1 else n for n in shape]).astype(np.float32)
        for name, shape in weight_shapes(card).items()
    }


def write_model(
    folder: Path, card: ModelCard = NUGRAPH3, weights: dict[str, NDArray[Any]] | None = None
) -> Path:
    """Write the card and the weights of a model; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    content = save(random_weights(card) if weights is None else weights)
    named = WeightsFile(card.weights.file, hashlib.sha256(content).hexdigest())
    (folder / named.file).write_bytes(content)
    (folder / "model.json").write_text(dump_card(replace(card, weights=named)))
    return folder


def make_event(
    local_plane: Any, local_wire: Any, local_time: Any, *, hit_id: Any = None, triplets: Any = ()
) -> Event:
    """Make an event from hit coordinates and the (u, v, y) hit ids of its spacepoints.

    Charge and width follow from the row number.
    """
    rows = np.arange(len(local_plane))
    ids = np.array(triplets, np.int32).reshape(-1, 3)
    tensors = {
        "hit_table_hit_id": np.array(rows if hit_id is None else hit_id, np.int32),
        "hit_table_local_plane": np.array(local_plane, np.int32),
        "hit_table_local_time": np.array(local_time, np.float32),
        "hit_table_local_wire": np.array(local_wire, np.int32),
        "hit_table_integral": (50 + rows % 97).astype(np.float32),
        "hit_table_rms": (2 + rows % 5).astype(np.float32),
        "spacepoint_table_spacepoint_id": np.arange(len(ids), dtype=np.int32),
    }
    for axis, plane in enumerate("uvy"):
        tensors[f"spacepoint_table_hit_id_{plane}"] = np.ascontiguousarray(ids[:, axis])
    return Event.from_tensors(tensors)


def random_event(
    random: np.random.Generator | int,
    hits: int,
    *,
    schema: Schema = UVY,
    planes: Sequence[int] | None = None,
    positions: bool = False,
    duplicates: bool = False,
) -> Event:
    """Make an event of scattered hits, two in five of them joined by spacepoints.

    ``random`` may be a seed. Hits are in all planes or these. With ``duplicates`` hit ids repeat,
    so that spacepoints have several edges in a plane; positions are left out where the schema has
    none.
    """
    rng, count = np.random.default_rng(random), len(schema.planes)
    plane = rng.choice(np.array(range(count) if planes is None else planes, np.int32), hits)
    ids = np.arange(hits, dtype=np.int32)
    rng.shuffle(ids)
    if duplicates:
        # Not in several planes: nugraph's generations see them differently there.
        ids = ids // 3 * count + plane
    spacepoints = 2 * hits // 5
    columns: dict[str, NDArray[Any]] = {
        "hit_table_hit_id": ids,
        "hit_table_local_plane": plane,
        "hit_table_local_time": rng.uniform(0, 6400, hits).astype(np.float32),
        "hit_table_local_wire": rng.integers(0, 3456, hits, dtype=np.int32),
        "hit_table_integral": rng.lognormal(4.5, 1, hits).astype(np.float32),
        "hit_table_rms": rng.uniform(2, 12, hits).astype(np.float32),
        "spacepoint_table_spacepoint_id": np.arange(spacepoints, dtype=np.int32),
    }
    for number, name in enumerate(schema.planes):
        own = ids[plane == number]
        named = rng.choice(own, spacepoints) if len(own) else np.full(spacepoints, -1)
        missing = rng.random(spacepoints) < 0.2
        columns[f"spacepoint_table_hit_id_{name}"] = np.where(missing, -1, named).astype(np.int32)
    for tensor in schema.tensors:
        if tensor.name in columns or (tensor.optional and not positions):
            continue
        if tensor.optional:
            columns[tensor.name] = rng.uniform(-1, 1, spacepoints).astype(np.float32)
        else:
            columns[tensor.name] = rng.integers(0, 2, hits).astype(tensor.dtype)
    return Event.from_tensors(columns, schema)
