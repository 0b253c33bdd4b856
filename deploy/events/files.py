"""Events of an HDF5 file, one at a time, as the tensors that a model reads.

A file is opened, its rows are grouped into events (:mod:`.grouping`), and an event's rows are
read on demand: memory follows the largest event, not the file.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from deploy.events.grouping import EventId, Segments, group
from deploy.events.tables import Column, EventFileError, Table, open_table
from numl_formats.contract import HIT_ID, HITS, INPUTS, PLANE, SPACEPOINTS, TIME, WIRE, planes_of

if TYPE_CHECKING:
    from typing import Self

Tensors = Mapping[str, NDArray[Any]]
Columns = Mapping[str, Mapping[str, type[np.generic]]]

# A client puts labels back by these, and draws them, whether a model reads them or not.
ALWAYS = {name: INPUTS[name] for name in (HIT_ID, PLANE, TIME, WIRE)}
# What pynuml calls these columns since 25.4.
_SINCE_25_4 = {"local_plane": "view", "local_wire": "proj", "local_time": "drift"}
_ALSO_WIDE = {"nu_vtx_corr": tuple(f"nu_vtx_corr_{axis}" for axis in "xyz")}
# Rows between an event's scattered rows that are read rather than skipped.
_GAP_ROWS = 1 << 20
_LEAST, _BEYOND = -(2**31), 2**31  # of int32; float32 has both


@dataclass(frozen=True, slots=True, eq=False)
class EventTensors:
    """One event as it is sent: int32 or float32 ``[rows]`` by the names of the model's inputs.

    The id's parts are 0 where the file has none.
    """

    event_id: EventId
    source: str
    tensors: Tensors

    @property
    def hits(self) -> int:
        return len(self.tensors[HIT_ID])


class Events(ABC):
    """An HDF5 file of events, open for reading; a context manager."""

    event_ids: tuple[EventId, ...]

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_hdf5(path)
        try:
            self._open()
        except EventFileError:
            self.close()
            raise
        except (AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
            self.close()
            raise EventFileError(f"{path}: cannot be read: {one_line(error)}") from error

    @abstractmethod
    def _open(self) -> None:
        """Find the events."""

    @abstractmethod
    def read(self, index: int) -> EventTensors:
        """Return the event ``index`` of ``event_ids``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self.event_ids)


class EventFile(Events):
    """A file of tables.

    Events come in the order of ``event_table``, then of their first hit. The names of the
    model's inputs name the columns; those in ``optional`` may be missing. Of the columns in
    ``also``, by table, those that are there are read, too.
    """

    def __init__(
        self,
        path: Path,
        inputs: Mapping[str, str] = INPUTS,
        optional: Collection[str] = (),
        also: Columns = MappingProxyType({}),
    ) -> None:
        self._planes = planes_of(inputs)
        self._inputs = {**ALWAYS, **inputs}
        self._optional = set(optional) - ALWAYS.keys()
        self._also = also
        self._converted: dict[str, NDArray[Any] | None] = {}
        super().__init__(path)

    def _open(self) -> None:
        hits = open_table(self._file, HITS)
        if hits is None:
            present = ", ".join(sorted(self._file)) or "nothing"
            raise EventFileError(f"{self.path}: no {HITS} in it (it has {present})")
        wide = {"hit_id": tuple(f"hit_id_{plane}" for plane in self._planes)}
        spacepoints = open_table(self._file, SPACEPOINTS, wide)
        if spacepoints is None and not hits.pandas and self._planes:
            raise EventFileError(f"{self.path}: no {SPACEPOINTS} in it")
        if "local_plane" not in hits.columns and "view" in hits.columns:
            hits = replace(hits, renamed=_SINCE_25_4)
        self._tables: dict[str, Table | None] = {HITS: hits, SPACEPOINTS: spacepoints}
        self._columns = {name: self._wanted(name, table) for name, table in self._tables.items()}
        for name, columns in self._also.items():
            if (table := open_table(self._file, name, _ALSO_WIDE)) is not None:
                self._tables[name] = table
                self._columns[name] = {c: k for c, k in columns.items() if c in table.columns}
        # pandas writes no table at all for an empty DataFrame.
        grouped = {n: t for n, t in self._tables.items() if t is not None and self._columns[n]}
        rows = [(table, table.rows(tuple(self._columns[n]))) for n, table in grouped.items()]
        self.event_ids, segments = group(rows, open_table(self._file, "event_table"))
        self._segments: dict[str, Segments] = dict(zip(grouped, segments, strict=True))

    def _wanted(self, name: str, table: Table | None) -> dict[str, type[np.generic]]:
        """Return the dtypes of those columns of a table that the model reads."""
        columns: dict[str, type[np.generic]] = {}
        for tensor, datatype in self._inputs.items():
            column = tensor.removeprefix(f"{name}_")
            if column == tensor:
                continue  # another table's
            if tensor not in self._optional or table is None or table.own(column) in table.columns:
                columns[column] = kind_of(datatype)
        return columns

    def has(self, table: str, *columns: str) -> bool:
        """Return whether these columns are read of a table."""
        return self._columns.get(table, {}).keys() >= set(columns)

    def read(self, index: int) -> EventTensors:
        """Return the event ``index`` of ``event_ids``.

        Whole numbers stored as floats become int32, a spacepoint's missing (NaN) hit id -1.
        """
        tensors: dict[str, NDArray[Any]] = {}
        for name, table in self._tables.items():
            runs = self._segments[name].of(index) if name in self._segments else []
            rows = slice(*runs[0]) if len(runs) == 1 else None
            for column, dtype in self._columns[name].items():
                key = f"{name}_{column}"
                if table is None:
                    tensors[key] = np.empty(0, dtype=dtype)
                    continue
                if key not in self._converted:
                    self._converted[key] = _convert_whole(
                        table.column(column), column, dtype, self._where(name, table, column)
                    )
                whole = self._converted[key]
                if whole is not None and rows is not None:
                    tensors[key] = whole[rows]
                else:
                    where = self._where(name, table, column)
                    values = _read_runs(table.column(column), runs, where)
                    tensors[key] = convert(_numbers(values, column, where), dtype, where)
        return EventTensors(self.event_ids[index], str(self.path), MappingProxyType(tensors))

    def _where(self, name: str, table: Table, column: str) -> str:
        return f"{self.path}: {name}/{table.own(column)}"


def kind_of(datatype: str) -> type[np.generic]:
    """Return the dtype of a column whose tensor has this type of Triton's."""
    return np.float32 if datatype.startswith("FP") else np.int32


def as_sent(values: Any, tensor: str, datatype: str) -> NDArray[Any]:
    """Return a column that is in no file by the rules of `EventFile.read`.

    EventFileError if it has more dimensions than one, or cannot be sent without a change.
    """
    column = np.asarray(values)
    if column.ndim != 1:
        cause = f"{tensor} has the shape {list(column.shape)}, not one number for each row"
        raise EventFileError(cause)
    numbers = _numbers(column, tensor.removeprefix(f"{SPACEPOINTS}_"), tensor)
    return convert(numbers, kind_of(datatype), tensor)


def stat_file(path: Path) -> os.stat_result:
    """Return a file's size and times; EventFileError if there is none, or none to be read."""
    try:
        facts = path.stat()
    except FileNotFoundError as error:
        raise EventFileError(f"{path}: no such file") from error
    except OSError as error:
        raise EventFileError(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(facts.st_mode):
        raise EventFileError(f"{path}: not a file")
    return facts


def open_hdf5(path: Path) -> h5py.File:
    """Open a file for reading; EventFileError says why it cannot be."""
    stat_file(path)
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        if error.errno:
            reason = os.strerror(error.errno)
        else:
            reason = str(error).split("\n")[0] if h5py.is_hdf5(path) else "not an HDF5 file"
        raise EventFileError(f"{path}: {reason}") from error


def _convert_whole(
    column: Column, name: str, dtype: type[np.generic], where: str
) -> NDArray[Any] | None:
    """Return a small column, converted at once; None if events must be read one by one."""
    if (values := column.whole()) is None:
        return None
    try:
        return convert(_numbers(values, name, where), dtype, where)
    except EventFileError:
        return None  # of an event, which is told of that event alone


def _numbers(values: NDArray[Any], name: str, where: str) -> NDArray[Any]:
    if values.size and values.dtype.kind not in "iufb":
        raise EventFileError(f"{where} holds {values.dtype}, not numbers")
    if name.startswith("hit_id_") and values.dtype.kind == "f":
        values = np.where(np.isnan(values), -1, values)
    return values


def one_line(error: BaseException) -> str:
    """Return an error of HDF5 or h5py in one line."""
    text = " ".join(str(error).split())
    if "plugin" in text or "filter" in text:
        return "compressed with a filter that plain HDF5 lacks (pandas: use complib='zlib')"
    return text


def _read_runs(column: Column, runs: list[tuple[int, int]], where: str) -> NDArray[Any]:
    """Read rows in one or more contiguous runs, in file order."""
    if not runs:
        return np.empty(0)
    low, high = runs[0][0], runs[-1][1]
    wanted = sum(stop - start for start, stop in runs)
    try:
        if len(runs) > 8 and high - low <= max(16 * wanted, _GAP_ROWS):
            # Many short runs, close together: read the whole range at once.
            rows = np.concatenate([np.arange(start, stop) for start, stop in runs])
            return np.asarray(column.read(low, high)[rows - low])
        return np.concatenate([column.read(start, stop) for start, stop in runs])
    except (OSError, RuntimeError) as error:
        raise EventFileError(f"{where} cannot be read: {one_line(error)}") from error


def convert(values: NDArray[Any], dtype: type[np.generic], where: str) -> NDArray[Any]:
    """Return a column as float32 or int32; EventFileError where that would change a number."""
    if values.size == 0:
        return np.empty(0, dtype=dtype)
    if values.dtype == dtype:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype is np.float32:
            return values.astype(np.float32, copy=False)
        bad = (values < _LEAST) | (values >= _BEYOND)
        if values.dtype.kind == "f":
            bad |= ~np.isfinite(values) | (values != np.floor(values))
    if bad.any():
        row = int(np.argmax(bad))
        raise EventFileError(f"{where} row {row} of the event is {values[row]}: not an int32")
    return values.astype(np.int32, copy=False)
