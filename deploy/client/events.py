"""Events of an HDF5 file, one at a time, as the tensors that a model reads.

A file is opened, its rows are grouped into events (:mod:`.grouping`), and an
event's rows are read when it is asked for: memory follows the largest event,
not the file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from deploy.client.grouping import EventId, group
from deploy.client.tables import EventFileError, Table, open_table
from deploy.server.contract import INPUTS

Tensors = Mapping[str, NDArray[Any]]
_Columns = dict[str, type[np.generic]]

_PLANE_INPUT = "spacepoint_table_hit_id_"
# What labels are told by, and drawn at, whether a model reads it or not.
_ALWAYS = ("hit_id", "local_plane", "local_time", "local_wire")
# What pynuml calls these columns since 25.4, in a table that has no local_plane.
_SINCE_25_4 = MappingProxyType({"local_plane": "view", "local_wire": "proj", "local_time": "drift"})
# Rows between an event's scattered rows that are read along rather than skipped.
_GAP_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class EventTensors:
    """One event as it goes to the server.

    Attributes:
        event_id: Run, subrun, event; zeros where the file names none.
        source: The file it comes from.
        tensors: By the names of the model's inputs (``hit_table_hit_id``, ...), one-dimensional,
            int32 or float32.
    """

    event_id: EventId
    source: str
    tensors: Tensors

    @property
    def hits(self) -> int:
        """The number of hits."""
        return len(self.tensors["hit_table_hit_id"])


def planes_of(inputs: Collection[str]) -> tuple[str, ...]:
    """Return the planes of a model that has these inputs, in the order of ``local_plane``."""
    named = (name for name in inputs if name.startswith(_PLANE_INPUT))
    return tuple(name.removeprefix(_PLANE_INPUT) for name in named)


class EventFile:
    """An HDF5 file of events, open for reading; a context manager.

    Events come in the order of ``event_table``, then of their first hit.

    Args:
        path: The file.
        inputs: The model's inputs, Triton's data types by name, which are those of the
            columns: ``hit_table_...`` and ``spacepoint_table_...``.
        optional: Those that the file may lack.

    Raises:
        EventFileError: No such file, not HDF5, a table or column is missing, or
            columns of one table differ in length.
    """

    def __init__(
        self,
        path: Path,
        inputs: Mapping[str, str] = INPUTS,
        optional: Collection[str] = (),
    ) -> None:
        self.path = path
        self._planes = planes_of(inputs)
        always = {f"hit_table_{name}": INPUTS[f"hit_table_{name}"] for name in _ALWAYS}
        self._inputs = {**always, **inputs}
        self._optional = set(optional) - always.keys()
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
        wide = {"hit_id": tuple(f"hit_id_{plane}" for plane in self._planes)}
        spacepoints = open_table(self._file, "spacepoint_table", wide)
        if spacepoints is None and not hits.pandas and self._planes:
            raise EventFileError(f"{self.path}: no spacepoint_table in it")
        self._hits, self._spacepoints = hits, spacepoints
        older = "local_plane" in hits.columns or "view" not in hits.columns
        self._names = MappingProxyType({}) if older else _SINCE_25_4
        self._hit_columns = self._columns("hit_table", hits)
        self._spacepoint_columns = self._columns("spacepoint_table", spacepoints)
        tables = [(hits, hits.rows(self._in_file(self._hit_columns)))]
        # pandas writes no table at all for an empty DataFrame.
        if spacepoints is not None and self._spacepoint_columns:
            names = self._in_file(self._spacepoint_columns)
            tables.append((spacepoints, spacepoints.rows(names)))
        self.event_ids, segments = group(tables, open_table(self._file, "event_table"))
        self._hit_segments = segments[0]
        self._spacepoint_segments = segments[1] if len(segments) > 1 else None

    def _columns(self, name: str, table: Table | None) -> _Columns:
        """Return the types of a table's columns that the model reads, by its names for them."""
        prefix = f"{name}_"
        columns: _Columns = {}
        for tensor, datatype in self._inputs.items():
            column = tensor.removeprefix(prefix)
            there = table is None or self._names.get(column, column) in table.columns
            if column != tensor and (there or tensor not in self._optional):
                columns[column] = np.float32 if datatype.startswith("FP") else np.int32
        return columns

    def _in_file(self, columns: _Columns) -> tuple[str, ...]:
        return tuple(self._names.get(name, name) for name in columns)

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
        for name, dtype in self._hit_columns.items():
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
        name = self._names.get(name, name)
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
