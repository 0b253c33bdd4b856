"""Writing and reading pynuml's HDF5 layout.

A table is a group; every column is a dataset [rows, width]; `event_id` repeats (run, subrun,
event) for every row, and `event_id.seq_cnt` lists (number of the event, rows of it). pynuml's
own `pynuml.io.File` opens with HDF5's MPI driver, which h5py's wheels on PyPI do not have;
`read_events` reads the same layout with plain h5py.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from .simulate import SimulatedEvent, Table

TABLES: Final = ("hit_table", "spacepoint_table", "particle_table", "edep_table", "event_table")
_CHUNK_ROWS: Final = 4096


def write_events(
    path: Path, events: Iterable[SimulatedEvent], progress: Callable[[int], None] | None = None
) -> int:
    """Write events to a new file, which appears only when it is complete.

    Args:
        path: the file; replaced if it exists.
        events: the events, in the order of their ids.
        progress: called with the number of events seen so far.

    Returns:
        The number of events written.

    Raises:
        OSError: the file cannot be written; nothing is left behind.
    """
    kept: list[SimulatedEvent] = []
    for event in events:
        kept.append(event)
        if progress:
            progress(len(kept))
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        with h5py.File(name, "w") as file:
            for table in TABLES:
                _write_table(file.create_group(table), table, kept)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
    return len(kept)


def _write_table(group: Any, table: str, events: Sequence[SimulatedEvent]) -> None:
    parts = [event.tables[table] for event in events]
    rows = [len(next(iter(part.values()))) for part in parts]
    ids = np.array([event.event_id for event in events], dtype=np.int32).reshape(-1, 3)
    _write_column(group, "event_id", np.repeat(ids, rows, axis=0))
    # as in pynuml's files, an event without rows has no entry
    counted = np.array([(i, n) for i, n in enumerate(rows) if n], dtype=np.int64).reshape(-1, 2)
    _write_column(group, "event_id.seq_cnt", counted)
    for column in parts[0] if parts else ():
        _write_column(group, column, np.concatenate([part[column] for part in parts]))


def _write_column(group: Any, name: str, values: np.ndarray[Any, Any]) -> None:
    kind = h5py.string_dtype() if values.dtype == object else values.dtype
    group.create_dataset(
        name,
        data=values,
        dtype=kind,
        chunks=(min(max(len(values), 1), _CHUNK_ROWS), values.shape[1]),
        maxshape=(None, values.shape[1]),
        compression="gzip",
        compression_opts=9,
        shuffle=True,
    )


def read_events(path: Path) -> list[SimulatedEvent]:
    """Read all events of a file with the five tables; strings come back as bytes.

    Raises:
        OSError: the file cannot be read.
        KeyError: a table or its index is missing.
    """
    with h5py.File(path) as file:
        ids = file["event_table/event_id"][()]
        tables: list[dict[str, Table]] = [{} for _ in ids]
        for table in TABLES:
            group = file[table]
            columns = {name: group[name][()] for name in group if not name.startswith("event_id")}
            counts = np.zeros(len(ids), dtype=np.int64)
            index = group["event_id.seq_cnt"][()]
            counts[index[:, 0]] = index[:, 1]
            ends = np.cumsum(counts)
            for i, (start, end) in enumerate(zip(ends - counts, ends, strict=True)):
                tables[i][table] = {name: col[start:end] for name, col in columns.items()}
    return [
        SimulatedEvent((int(run), int(subrun), int(event)), part)
        for (run, subrun, event), part in zip(ids, tables, strict=True)
    ]
