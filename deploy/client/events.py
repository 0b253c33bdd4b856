"""Events of an HDF5 file, one at a time, as the tensors of the wire.

A file is opened, its rows are grouped into events (:mod:`.grouping`), and an
event's rows are read when it is asked for: memory follows the largest event,
not the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from deploy.client.grouping import EventId, group
from deploy.client.tables import EventFileError, Table, open_table

Tensors = Mapping[str, NDArray[Any]]

HIT_COLUMNS: Mapping[str, type[np.generic]] = MappingProxyType(
    {
        "hit_id": np.int32,
        "local_plane": np.int32,
        "local_time": np.float32,
        "local_wire": np.int32,
        "integral": np.float32,
        "rms": np.float32,
    }
)
SPACEPOINT_COLUMNS: Mapping[str, type[np.generic]] = MappingProxyType(
    dict.fromkeys(("spacepoint_id", "hit_id_u", "hit_id_v", "hit_id_y"), np.int32)
)
POSITION_COLUMNS: Mapping[str, type[np.generic]] = MappingProxyType(
    dict.fromkeys(("position_x", "position_y", "position_z"), np.float32)
)
# Rows between an event's scattered rows that are read along rather than skipped.
_GAP_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class EventTensors:
    """One event as it goes to the server.

    Attributes:
        event_id: Run, subrun, event; zeros where the file names none.
        source: The file it comes from.
        tensors: By wire name (``hit_table_hit_id``, ...), one-dimensional, int32 or
            float32; ``spacepoint_table_position_x``, ``_y``, ``_z`` where the file has them.
    """

    event_id: EventId
    source: str
    tensors: Tensors

    @property
    def hits(self) -> int:
        """The number of hits."""
        return len(self.tensors["hit_table_hit_id"])


class EventFile:
    """An HDF5 file of events, open for reading; a context manager.

    Events come in the order of ``event_table``, then of their first hit.

    Args:
        path: The file.

    Raises:
        EventFileError: No such file, not HDF5, a table or column is missing, or
            columns of one table differ in length.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise EventFileError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
        try:
            self._file = h5py.File(path, "r", locking=False)
        except OSError as error:
            reason = "not an HDF5 file" if not h5py.is_hdf5(path) else str(error).split("\n")[0]
            raise EventFileError(f"{path}: {reason}") from error
        try:
            self._open()
        except EventFileError:
            self.close()
            raise
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            self.close()
            raise EventFileError(f"{path}: cannot be read: {_line(error)}") from error

    def _open(self) -> None:
        hits = open_table(self._file, "hit_table")
        if hits is None:
            present = ", ".join(sorted(self._file)) or "nothing"
            raise EventFileError(f"{self.path}: no hit_table in it (it has {present})")
        spacepoints = open_table(self._file, "spacepoint_table")
        if spacepoints is None and not hits.pandas:
            raise EventFileError(f"{self.path}: no spacepoint_table in it")
        columns = tuple(SPACEPOINT_COLUMNS)
        if spacepoints is not None and all(c in spacepoints.columns for c in POSITION_COLUMNS):
            columns += tuple(POSITION_COLUMNS)
        self._hits, self._spacepoints = hits, spacepoints
        self._spacepoint_columns = {
            name: np.int32 if name in SPACEPOINT_COLUMNS else np.float32 for name in columns
        }
        tables = [(hits, hits.rows(tuple(HIT_COLUMNS)))]
        # pandas writes no table at all for an empty DataFrame.
        if spacepoints is not None:
            tables.append((spacepoints, spacepoints.rows(columns)))
        self.event_ids, segments = group(tables, open_table(self._file, "event_table"))
        self._hit_segments = segments[0]
        self._spacepoint_segments = segments[1] if len(segments) > 1 else None

    def __enter__(self) -> EventFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __len__(self) -> int:
        return len(self.event_ids)

    def read(self, index: int) -> EventTensors:
        """Return the event ``index`` of ``event_ids``.

        Values are taken as they are; a float column of whole numbers becomes int32,
        and a missing (NaN) spacepoint hit id becomes -1, "no hit in this plane".

        Raises:
            EventFileError: A value does not fit its tensor, or the file is damaged.
        """
        hit_runs = self._hit_segments.of(index)
        tensors: dict[str, NDArray[Any]] = {}
        for name, dtype in HIT_COLUMNS.items():
            tensors[f"hit_table_{name}"] = self._column(self._hits, name, hit_runs, dtype)
        runs = [] if self._spacepoint_segments is None else self._spacepoint_segments.of(index)
        for name, dtype in self._spacepoint_columns.items():
            key = f"spacepoint_table_{name}"
            if self._spacepoints is None:
                tensors[key] = np.empty(0, dtype=dtype)
            else:
                tensors[key] = self._column(self._spacepoints, name, runs, dtype)
        return EventTensors(self.event_ids[index], str(self.path), MappingProxyType(tensors))

    def _column(
        self, table: Table, name: str, runs: list[tuple[int, int]], dtype: type[np.generic]
    ) -> NDArray[Any]:
        column = table.column(name)
        where = f"{table.name}/{name}"
        try:
            values = _read_runs(column.read, runs)
        except (OSError, RuntimeError) as error:
            raise EventFileError(f"{self.path}: {where} cannot be read: {_line(error)}") from error
        if values.size == 0:
            return np.empty(0, dtype=dtype)
        if values.dtype.kind not in "iufb":
            raise EventFileError(f"{self.path}: {where} holds {values.dtype}, not numbers")
        missing = -1 if name.startswith("hit_id_") else None
        return _convert(values, dtype, missing, f"{self.path}: {where}")


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if "plugin" in text or "filter" in text:
        return "compressed with a filter that plain HDF5 lacks (pandas: use complib='zlib')"
    return text


def _read_runs(read: Any, runs: list[tuple[int, int]]) -> NDArray[Any]:
    """Read rows that lie in one or more runs, in file order."""
    if not runs:
        return np.empty(0)
    low, high = runs[0][0], runs[-1][1]
    wanted = sum(stop - start for start, stop in runs)
    if len(runs) > 8 and high - low <= max(16 * wanted, _GAP_ROWS):
        # Many short runs, close together: one read of all that lies between.
        rows = np.concatenate([np.arange(start, stop) for start, stop in runs])
        return np.asarray(read(low, high)[rows - low])
    return np.concatenate([read(start, stop) for start, stop in runs])


def _convert(
    values: NDArray[Any], dtype: type[np.generic], missing: int | None, where: str
) -> NDArray[Any]:
    if dtype is np.float32:
        with np.errstate(over="ignore"):
            return values.astype(np.float32)
    if values.dtype.kind == "f" and missing is not None:
        values = np.where(np.isnan(values), missing, values)
    limits = np.iinfo(np.int32)
    with np.errstate(invalid="ignore"):
        bad = (values < limits.min) | (values > limits.max)
        if values.dtype.kind == "f":
            bad |= ~np.isfinite(values) | (values != np.floor(values))
    if bad.any():
        row = int(np.argmax(bad))
        raise EventFileError(f"{where} row {row} of the event is {values[row]}: not an int32")
    return values.astype(np.int32)
