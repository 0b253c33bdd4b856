"""Small models with random weights, and their directories: nothing of nugraph is needed."""

import hashlib
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
from numl_formats.contract import Schema

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


def random_event(
    schema: Schema, hits: int, spacepoints: int | None = None, *, seed: int = 0, first_id: int = 0
) -> Event:
    """Make an event of scattered hits; a spacepoint names a hit of each plane that has some."""
    rng = np.random.default_rng(seed)
    count = hits if spacepoints is None else spacepoints
    plane = rng.integers(0, len(schema.planes), hits)
    columns: dict[str, Any] = {
        "hit_table_hit_id": first_id + rng.permutation(hits),
        "hit_table_local_plane": plane,
        "hit_table_local_wire": rng.integers(0, 3456, hits),
        "spacepoint_table_spacepoint_id": np.arange(count),
    }
    for index, name in enumerate(schema.planes):
        ids = columns["hit_table_hit_id"][plane == index]
        named = rng.choice(ids, count) if len(ids) else np.full(count, -1)
        columns[f"spacepoint_table_hit_id_{name}"] = named
    for tensor in schema.tensors:
        if tensor.name.startswith("hit_table_") and tensor.name not in columns:
            columns[tensor.name] = rng.uniform(0, 100, hits)
    return Event.from_tensors(
        {
            tensor.name: np.ascontiguousarray(columns[tensor.name], tensor.dtype)
            for tensor in schema.tensors
            if not tensor.optional
        },
        schema,
    )
