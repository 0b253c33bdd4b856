"""Files of events, written as pynuml's HDF5 maker does."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]
EventId = tuple[int, int, int]


def full_disk(*_: object, **__: object) -> None:
    """Stands for what writes."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def make_event(hits: int, spacepoints: int, seed: int = 0) -> tuple[Columns, Columns]:
    """Columns of one event, by pynuml's names, as the file holds them."""
    rng = np.random.default_rng(seed)
    return (
        {
            "hit_id": rng.permutation(hits).astype(np.int32),
            "local_plane": rng.integers(0, 3, hits).astype(np.int32),
            "local_time": rng.uniform(0, 6400, hits).astype(np.float32),
            "local_wire": rng.integers(0, 3456, hits).astype(np.int32),
            "integral": rng.uniform(0, 500, hits).astype(np.float32),
            "rms": rng.uniform(0, 9, hits).astype(np.float32),
        },
        {
            "spacepoint_id": np.arange(spacepoints, dtype=np.int32),
            "hit_id": rng.integers(-1, max(hits, 1), (spacepoints, 3)).astype(np.int32),
        },
    )


def write_pynuml(
    path: Path,
    events: Sequence[tuple[EventId, Columns, Columns]],
    *,
    order: NDArray[np.int64] | None = None,
    sequence: bool = True,
    ids: bool = True,
    event_table: bool = True,
) -> None:
    """Write events as pynuml's HDF5 maker does; ``order`` permutes the rows of hits."""
    with h5py.File(path, "w") as file:
        for name, tables in (
            ("hit_table", [hits for _, hits, _ in events]),
            ("spacepoint_table", [spacepoints for _, _, spacepoints in events]),
        ):
            counts = [len(next(iter(t.values()))) for t in tables]
            rows: NDArray[np.int64] = np.arange(sum(counts))
            rows = order if order is not None and name == "hit_table" else rows
            for column in tables[0]:
                values = np.concatenate([t[column] for t in tables])
                file[f"{name}/{column}"] = (values if values.ndim == 2 else values[:, None])[rows]
            if ids:
                repeated = np.repeat(np.array([e[0] for e in events], np.int32), counts, axis=0)
                file[f"{name}/event_id"] = repeated[rows]
            if sequence:
                pairs = [(i, n) for i, n in enumerate(counts) if n]
                file[f"{name}/event_id.seq_cnt"] = np.array(pairs, np.int64).reshape(-1, 2)
        if event_table:
            file["event_table/event_id"] = np.array([e[0] for e in events], dtype=np.int32)
