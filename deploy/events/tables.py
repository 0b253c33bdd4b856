"""Tables of an HDF5 file as named columns, whichever program wrote them.

Four layouts are read with h5py alone, without unpickling anything:

* pynuml's: a group of datasets, one per column, each ``[rows]``, ``[rows, 1]`` or, for
  ``event_id`` and ``position``, ``[rows, 3]``, for a spacepoint's ``hit_id`` ``[rows, planes]``;
* a compound dataset (``DataFrame.to_records``), one field per column;
* pandas, ``to_hdf(format="table")``: PyTables' compound dataset ``table``, with
  columns of one dtype packed into fields ``values_block_N``;
* pandas, ``to_hdf(format="fixed")`` (pandas' default): ``blockN_values`` of
  ``[rows, columns]`` and the row index in ``axis1``, with a level per key for a MultiIndex.

A row index named as a part of the event's id is that part. What pandas writes is in its
``pandas.io.pytables`` (2.3, 3.0 and 3.1 were tried).
"""

import math
import pickletools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5o, h5s
from numpy.typing import NDArray

from deploy.host.errors import KitError

Array = NDArray[Any]
EVENT_ID = ("run", "subrun", "event")
SEQUENCE = "event_id.seq_cnt"
Wide = Mapping[str, tuple[str, ...]]
_WIDE: Wide = {"event_id": EVENT_ID, "position": ("position_x", "position_y", "position_z")}
# A column up to this size is read once: a call of HDF5 for each event costs more than its rows.
_WHOLE_BYTES = 1 << 20
# A dataset may claim more rows than it stores; reading it asks for memory for all of them.
_CLAIMED_BYTES, _DEFLATED_AT_MOST = 1 << 28, 1032
# All that a pickled list of strings needs.
_LIST_OPCODES = frozenset(
    {"PROTO", "FRAME", "MARK", "LIST", "EMPTY_LIST", "APPEND", "APPENDS", "STOP"}
    | {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
)
_TEXT_OPCODES = frozenset(
    {"STRING", "BINSTRING", "SHORT_BINSTRING"}
    | {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)


class EventFileError(KitError):
    """A file of events, or one of its events, cannot be read."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table; ``read(start, stop)`` returns these of its ``rows``, ``[n]``.

    ``whole()`` returns all rows of a column that is small and not damaged, else None.
    """

    rows: int
    read: Callable[[int, int], Array]
    whole: Callable[[], Array | None] = lambda: None


_NO_ROWS = Column(0, lambda _start, _stop: np.empty(0, dtype=np.int32))


@dataclass(frozen=True, slots=True)
class Table:
    """A table's columns by their names in the file; those of a wide dataset are named one by one.

    ``where`` names file and table. ``sequence()`` is pynuml's index: the row in ``event_table`` and
    the number of rows here of each event, ``[events, 2]``. ``renamed`` has the file's names of
    columns known by others.
    """

    name: str
    where: str
    columns: Mapping[str, Column]
    sequence: Callable[[], NDArray[np.int64] | None] = lambda: None
    pandas: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)

    def own(self, name: str) -> str:
        return self.renamed.get(name, name)

    def column(self, name: str) -> Column:
        name = self.own(name)
        if name not in self.columns:
            present = ", ".join(sorted(self.columns)) or "no column"
            raise EventFileError(f"{self.where} has no column {name} (it has {present})")
        return self.columns[name]

    def rows(self, names: tuple[str, ...]) -> int:
        """Return the common length of the columns ``names``."""
        first = self.column(names[0]).rows
        for name in names[1:]:
            rows = self.column(name).rows
            if rows != first:
                raise EventFileError(
                    f"{self.where}/{self.own(name)} has {rows} rows, "
                    f"{self.name}/{self.own(names[0])} has {first}"
                )
        return first


def open_table(file: h5py.File, name: str, wide: Wide = MappingProxyType({})) -> Table | None:
    """Return the table ``name`` of an open file, or None if there is none.

    ``wide`` names the columns of wide datasets, in addition to those in every file.
    """
    node, where, wide = _node(file, name), f"{file.filename}: {name}", {**_WIDE, **wide}
    if node is None:
        return None
    if isinstance(node, h5py.Dataset):
        return Table(name, where, _fields(node, where, wide))
    written_as = ""
    if h5a.exists(node.id, b"pandas_type"):
        written_as = _text(node.attrs["pandas_type"])
    if written_as == "frame":
        return Table(name, where, _fixed(node, where), pandas=True)
    packed = _node(node, "table")
    if isinstance(packed, h5py.Dataset) and packed.dtype.names:
        columns = _fields(packed, where, wide)
        index = _index_name(node.attrs.get("info", b""))
        if index in EVENT_ID and "index" in columns:
            columns.setdefault(index, columns["index"])
        return Table(name, where, columns, pandas=True)
    if written_as:
        raise EventFileError(f"{where} is a pandas {written_as}, not a DataFrame")
    return Table(name, where, _Datasets(node, where, wide), cache(lambda: _sequence(node, where)))


class _Datasets(Mapping[str, Column]):
    """The columns of a group of datasets; each is opened when it is asked for."""

    def __init__(self, group: h5py.Group, where: str, wide: Wide) -> None:
        self._group, self._where, self._wide = group, where, wide
        self._found: dict[str, Column] = {}
        self._opened: set[str] = set()

    def __getitem__(self, name: str) -> Column:
        for dataset in (*(wide for wide, parts in self._wide.items() if name in parts), name):
            if name not in self._found:
                self._open(dataset)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        for name in self._group:
            if not name.startswith("event_id.seq"):
                self._open(name)
        return iter(self._found)

    def __len__(self) -> int:
        return len(list(iter(self)))  # list(self) would ask for the length

    def _open(self, name: str) -> None:
        """Add the columns of a dataset, if it is there and of the shape of a column."""
        if name in self._opened:
            return
        self._opened.add(name)
        node, parts = _node(self._group, name), self._wide.get(name, ())
        if not isinstance(node, h5py.Dataset):
            return
        read, shape = _reader(node), node.shape
        if len(shape) == 2 and shape[1] == len(parts):
            for i, part in enumerate(parts):
                self._found[part] = _column(node, read, i)
        elif len(shape) == 1:
            # A flat event_id numbers events without run and subrun.
            self._found["event" if name == "event_id" else name] = _column(node, read)
        elif len(shape) == 2 and shape[1] == 1:
            self._found[name] = _column(node, read, 0)
        elif len(shape) == 2 and parts:
            wanted = f"{len(parts)}: {', '.join(parts)}"
            raise EventFileError(f"{self._where}/{name} has {shape[1]} columns, not {wanted}")


def _node(group: h5py.Group, name: str) -> h5py.Dataset | h5py.Group | None:
    """Return what a group has under a name; ``group.get`` costs more than HDF5 itself."""
    try:
        node = h5o.open(group.id, name.encode())
    except KeyError:
        return None  # not there, or a link that leads nowhere
    if isinstance(node, h5d.DatasetID):
        dataset = h5py.Dataset(node, readonly=True)  # or it asks HDF5 for its shape each time
        if dataset.shape is None:
            return None  # it has no rows, not even none
        _check_claim(dataset)
        return dataset
    return h5py.Group(node) if isinstance(node, h5g.GroupID) else None


def _check_claim(dataset: h5py.Dataset) -> None:
    """Refuse a large dataset that stores far less than compression explains."""
    claimed = math.prod(dataset.shape) * dataset.dtype.itemsize
    if claimed <= _CLAIMED_BYTES:
        return
    stored = dataset.id.get_storage_size()
    if claimed > _DEFLATED_AT_MOST * stored:
        raise EventFileError(
            f"{dataset.file.filename}: {dataset.name.lstrip('/')} claims {claimed / 1e9:.0f} GB, "
            f"and stores {stored} bytes"
        )


def _all_rows(dataset: h5py.Dataset, kind: np.dtype[Any]) -> Array:
    """Return all of a dataset; ``dataset[()]`` costs more than HDF5 itself, too."""
    if kind.kind not in "iuf":
        return np.asarray(dataset[()])
    values = np.empty(dataset.shape, dtype=kind)
    dataset.id.read(h5s.ALL, h5s.ALL, values)
    return values


def _reader(dataset: h5py.Dataset) -> Callable[[], Array | None]:
    """Return a function that reads a small dataset at once, the first time that it is called."""

    @cache
    def whole() -> Array | None:
        kind = dataset.dtype
        if math.prod(dataset.shape) * kind.itemsize > _WHOLE_BYTES:
            return None
        try:
            return _all_rows(dataset, kind)
        except (OSError, RuntimeError):
            return None  # only a part of it is damaged: other events may be read

    return whole


def _column(dataset: h5py.Dataset, read: Callable[[], Array | None], *column: int) -> Column:
    def part(start: int, stop: int) -> Array:
        rows: Any = (slice(start, stop), *column)
        values = read()
        return np.asarray(dataset[rows] if values is None else values[rows])

    def whole() -> Array | None:
        rows: Any = (slice(None), *column)
        values = read()
        return None if values is None else np.ascontiguousarray(values[rows])

    return Column(dataset.shape[0], part, whole)


def _sequence(group: h5py.Group, where: str) -> NDArray[np.int64] | None:
    node = _node(group, SEQUENCE)
    if node is None:
        return None
    if not isinstance(node, h5py.Dataset) or node.ndim != 2 or node.shape[1] != 2:
        raise EventFileError(f"{where}/{SEQUENCE} is not a dataset of shape [events, 2]")
    return np.asarray(_all_rows(node, node.dtype), dtype=np.int64)


def _fields(dataset: h5py.Dataset, where: str, wide: Wide) -> dict[str, Column]:
    if not dataset.dtype.names:
        raise EventFileError(f"{where} is a plain dataset, not a table of named columns")
    columns: dict[str, Column] = {}
    for packed in dataset.dtype.names:
        shape = dataset.dtype[packed].shape
        if not shape:
            columns[packed] = Column(len(dataset), _field(dataset, packed))
            continue
        kind = dataset.attrs.get(f"{packed}_kind")
        names = wide.get(packed) if kind is None else pickled_names(kind, where)
        if names is None or len(names) != shape[0]:
            raise EventFileError(f"{where} does not say which columns {packed} holds")
        for i, part in enumerate(names):
            columns[part] = Column(len(dataset), _field(dataset, packed, i))
    return columns


def _field(dataset: h5py.Dataset, name: str, *part: int) -> Callable[[int, int], Array]:
    return lambda start, stop: np.asarray(dataset.fields(name)[start:stop][(slice(None), *part)])


def pickled_names(pickled: object, where: str) -> tuple[str, ...]:
    """Return the strings of a list that pandas pickled, without unpickling it."""
    names: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(_raw(pickled)):
            if opcode.name in _TEXT_OPCODES:
                names.append(_text(argument))
            elif opcode.name not in _LIST_OPCODES:
                raise ValueError(opcode.name)
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise EventFileError(
            f"{where}: its column names are not a plain list of strings",
            "write it with data_columns=True, or with format='fixed'",
        ) from error
    return tuple(names)


def _index_name(pickled: object) -> str:
    """Return the name of the row index in what pandas pickled of a table; empty without."""
    before = ""
    with suppress(ValueError, IndexError, UnicodeDecodeError):
        for opcode, argument, _ in pickletools.genops(_raw(pickled)):
            if opcode.name in _TEXT_OPCODES:
                if before == "index_name":
                    return _text(argument)
                before = _text(argument)
            elif opcode.name not in _LIST_OPCODES:
                before = ""
    return ""


def _raw(pickled: object) -> bytes:
    return pickled if isinstance(pickled, bytes) else np.asarray(pickled).tobytes()


def _fixed(group: h5py.Group, where: str) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for i in range(int(group.attrs.get("axis1_nlevels", 0))):
        level, codes = group[f"axis1_level{i}"], group[f"axis1_label{i}"]
        key = _text(level.attrs.get("name", ""))
        # Levels are small, for they hold each key once; labels are as long as the table.
        if level.dtype.kind in "iuf":
            columns[key] = Column(len(codes), _level(np.asarray(level[()]), codes))
    index = _node(group, "axis1")
    if isinstance(index, h5py.Dataset) and index.ndim == 1:
        key, is_empty = _text(index.attrs.get("name", "")), "value_type" in index.attrs
        if key in EVENT_ID:
            columns[key] = _NO_ROWS if is_empty else _column(index, _reader(index))
    for i in range(int(group.attrs.get("nblocks", 0))):
        items, values = group.get(f"block{i}_items"), group.get(f"block{i}_values")
        if not isinstance(items, h5py.Dataset) or not isinstance(values, h5py.Dataset):
            raise EventFileError(f"{where} lacks block{i}, which its header announces")
        if items.dtype.kind != "S" or values.ndim != 2:
            continue  # names that are not strings, or values that pandas pickled (text)
        transposed = bool(values.attrs.get("transposed", False))
        # An empty frame's blocks are placeholders of shape [1, 1].
        rows = 0 if "value_type" in values.attrs else values.shape[0 if transposed else 1]
        read = _reader(values)
        for j, item in enumerate(items[()] if items.ndim == 1 else ()):
            columns[_text(item)] = _block(values, read, j, rows, transposed)
    return columns


def _level(values: Array, codes: h5py.Dataset) -> Callable[[int, int], Array]:
    return lambda start, stop: np.asarray(values[codes[start:stop]])


def _block(
    values: h5py.Dataset, read: Callable[[], Array | None], item: int, rows: int, transposed: bool
) -> Column:
    if rows == 0:
        return _NO_ROWS
    if transposed:
        return _column(values, read, item)
    return Column(rows, lambda start, stop: np.asarray(values[item, start:stop]))


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
