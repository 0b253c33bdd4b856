"""A synthetic event for models without one: any event shows whether a server answers correctly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from numl_formats.contract import HITS, SPACEPOINTS, Schema
from numl_serving.event import Event

_TRACKS, _LENGTH = 3, 20


def example_event(schema: Schema) -> Event:
    """Make an event of straight tracks that every plane sees; the same for the same schema.

    Columns that only some models have are zero where they are numbers of detector parts, else
    random.
    """
    rng = np.random.default_rng(0)
    planes, in_plane = len(schema.planes), _TRACKS * _LENGTH
    hits, tracks = planes * in_plane, (planes * _TRACKS, 1)
    along = np.arange(_LENGTH)
    known: dict[str, NDArray[Any]] = {
        f"{HITS}_hit_id": np.arange(hits),
        f"{HITS}_local_plane": np.repeat(np.arange(planes), in_plane),
        f"{HITS}_local_wire": (rng.integers(100, 600, tracks) + along).ravel(),
        f"{HITS}_local_time": (
            rng.uniform(500, 3000, tracks) + rng.uniform(-20, 20, tracks) * along
        ).ravel(),
        f"{HITS}_integral": rng.lognormal(4.5, 0.5, hits),
        f"{HITS}_rms": rng.uniform(2, 8, hits),
        f"{SPACEPOINTS}_spacepoint_id": np.arange(in_plane),
    }
    for index, plane in enumerate(schema.planes):
        known[f"{SPACEPOINTS}_hit_id_{plane}"] = index * in_plane + np.arange(in_plane)
    tensors = {}
    for tensor in schema.tensors:
        rows = hits if tensor.name.startswith(HITS) else in_plane
        other = np.zeros(rows) if tensor.dtype.kind == "i" else rng.normal(size=rows)
        tensors[tensor.name] = known.get(tensor.name, other).astype(tensor.dtype)
    return Event.from_tensors(tensors, schema)
