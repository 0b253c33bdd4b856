"""An event as it comes over the wire: frozen tables of hits and spacepoints, validated here.

Nothing behind this module checks the input again. A table that exists is valid, whether it was
made from the tensors of a request or by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from numl_serving.errors import EventError

Int32Array: TypeAlias = NDArray[np.int32]
Float32Array: TypeAlias = NDArray[np.float32]

PLANES = ("u", "v", "y")
"""The wire planes; a hit's ``local_plane`` is an index into this tuple."""

MAX_INTEGRAL = 1e6
"""Largest hit integral (ADC counts x ticks) that pynuml keeps; it drops an event with more."""

_INT32 = np.dtype(np.int32)
_FLOAT32 = np.dtype(np.float32)

_HIT_COLUMNS: dict[str, np.dtype[Any]] = {
    "hit_id": _INT32,
    "local_plane": _INT32,
    "local_time": _FLOAT32,
    "local_wire": _INT32,
    "integral": _FLOAT32,
    "rms": _FLOAT32,
}
_SPACEPOINT_COLUMNS: dict[str, np.dtype[Any]] = {
    "spacepoint_id": _INT32,
    "hit_id_u": _INT32,
    "hit_id_v": _INT32,
    "hit_id_y": _INT32,
}
_POSITION_COLUMNS = ("position_x", "position_y", "position_z")

INPUT_TENSORS: tuple[tuple[str, np.dtype[Any]], ...] = tuple(
    (f"{table}_{column}", dtype)
    for table, columns in (("hit_table", _HIT_COLUMNS), ("spacepoint_table", _SPACEPOINT_COLUMNS))
    for column, dtype in columns.items()
)
"""Name and dtype of the tensors that every request carries, in the order of the wire contract."""

POSITION_TENSORS = tuple(f"spacepoint_table_{column}" for column in _POSITION_COLUMNS)
"""Names of the optional float32 tensors with the spacepoint positions (cm): all three or none."""


@dataclass(frozen=True, slots=True, eq=False)
class HitTable:
    """The hits of one event, one row each; all columns have shape ``[H]`` and are read-only.

    Attributes:
        hit_id: int32, the number by which spacepoints refer to a hit.
        local_plane: int32, 0 (u), 1 (v) or 2 (y).
        local_time: float32, time ticks.
        local_wire: int32, wire number in the plane.
        integral: float32, charge in ADC counts x ticks, at most `MAX_INTEGRAL`.
        rms: float32, width in time ticks.

    Raises:
        EventError: A column is of the wrong type, length or content.
    """

    hit_id: Int32Array
    local_plane: Int32Array
    local_time: Float32Array
    local_wire: Int32Array
    integral: Float32Array
    rms: Float32Array

    def __post_init__(self) -> None:
        """Check every column and replace it by a contiguous, read-only view."""
        _freeze_columns(self, "hit_table", _HIT_COLUMNS)
        _check_planes(self.local_plane)
        _check_integrals(self.integral)

    def __len__(self) -> int:
        """Return the number of hits."""
        return len(self.hit_id)


@dataclass(frozen=True, slots=True, eq=False)
class SpacepointTable:
    """The spacepoints of one event; columns have shape ``[S]`` and are read-only.

    Attributes:
        spacepoint_id: int32, not used by the networks.
        hit_id_u: int32, ``hit_id`` of the spacepoint's hit in plane u; a number that names no
            hit of that plane (usually -1) means that there is none.
        hit_id_v: int32, the same for plane v.
        hit_id_y: int32, the same for plane y.
        position: float32 ``[S, 3]``, cm, or None where the request carries no positions.

    Raises:
        EventError: A column is of the wrong type, length or content.
    """

    spacepoint_id: Int32Array
    hit_id_u: Int32Array
    hit_id_v: Int32Array
    hit_id_y: Int32Array
    position: Float32Array | None = None

    def __post_init__(self) -> None:
        """Check every column and replace it by a contiguous, read-only view."""
        _freeze_columns(self, "spacepoint_table", _SPACEPOINT_COLUMNS)
        if self.position is not None:
            object.__setattr__(self, "position", _frozen_positions(self.position, len(self)))

    def __len__(self) -> int:
        """Return the number of spacepoints."""
        return len(self.spacepoint_id)


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One event: its hits and its spacepoints. Either table may be empty."""

    hits: HitTable
    spacepoints: SpacepointTable

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]]) -> Event:
        """Make an event from arrays under the tensor names of the wire.

        The arrays are not copied where they are contiguous: they must stay unchanged as long
        as the event is used.

        Args:
            tensors: The arrays named in `INPUT_TENSORS` and, optionally, `POSITION_TENSORS`.

        Raises:
            EventError: A tensor is missing, unknown, or of the wrong type, length or content.
        """
        missing = [name for name, _ in INPUT_TENSORS if name not in tensors]
        if missing:
            raise EventError(f"tensor {missing[0]} is missing: an event needs all of its columns")
        position = _stack_positions(tensors)
        expected = len(INPUT_TENSORS) + (0 if position is None else len(POSITION_TENSORS))
        if len(tensors) != expected:
            known = {name for name, _ in INPUT_TENSORS} | set(POSITION_TENSORS)
            unknown = next(name for name in tensors if name not in known)
            raise EventError(f"tensor {unknown} is not a column of an event: remove it")
        return cls(
            hits=HitTable(*(tensors[f"hit_table_{column}"] for column in _HIT_COLUMNS)),
            spacepoints=SpacepointTable(
                spacepoint_id=tensors["spacepoint_table_spacepoint_id"],
                hit_id_u=tensors["spacepoint_table_hit_id_u"],
                hit_id_v=tensors["spacepoint_table_hit_id_v"],
                hit_id_y=tensors["spacepoint_table_hit_id_y"],
                position=position,
            ),
        )

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the event's columns under the tensor names of the wire."""
        named: dict[str, NDArray[Any]] = {}
        for table, rows in (("hit_table", self.hits), ("spacepoint_table", self.spacepoints)):
            for field in fields(rows):
                if field.name != "position":
                    named[f"{table}_{field.name}"] = getattr(rows, field.name)
        if self.spacepoints.position is not None:
            for axis, name in enumerate(POSITION_TENSORS):
                named[name] = np.ascontiguousarray(self.spacepoints.position[:, axis])
        return named


def _freeze_columns(
    rows: HitTable | SpacepointTable, table: str, columns: Mapping[str, np.dtype[Any]]
) -> None:
    first = next(iter(columns))
    length = -1
    for column, dtype in columns.items():
        array = _frozen_column(getattr(rows, column), f"{table}.{column}", dtype)
        if length < 0:
            length = len(array)
        elif len(array) != length:
            raise EventError(
                f"{table}.{column} has {len(array)} rows but {table}.{first} has {length}: "
                "all columns of a table need one length"
            )
        object.__setattr__(rows, column, array)


def _frozen_column(array: Any, where: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    if not isinstance(array, np.ndarray):
        raise EventError(f"{where} is a {type(array).__name__}: a numpy array is needed")
    if array.dtype != dtype:
        raise EventError(f"{where} has dtype {array.dtype}: {dtype} is needed")
    if array.ndim != 1:
        raise EventError(f"{where} has shape {list(array.shape)}: one dimension is needed")
    if dtype is _FLOAT32 and not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        raise EventError(f"{where} is {array[row]} in row {row}: values must be finite")
    return _frozen(array)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    # A view: the caller's own array keeps its flags.
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _check_planes(local_plane: Int32Array) -> None:
    # Read as unsigned, a negative number is a large one: one comparison finds both.
    outside = local_plane.view(np.uint32) >= len(PLANES)
    if outside.any():
        row = int(np.argmax(outside))
        raise EventError(
            f"hit_table.local_plane is {local_plane[row]} in row {row}: "
            "planes are 0 (u), 1 (v) and 2 (y)"
        )


def _check_integrals(integral: Float32Array) -> None:
    if len(integral) and integral.max() > MAX_INTEGRAL:
        row = int(np.argmax(integral > MAX_INTEGRAL))
        raise EventError(
            f"hit_table.integral is {integral[row]:.6g} in row {row}: "
            f"pynuml drops events with an integral above {MAX_INTEGRAL:g}, leave this event out"
        )


def _stack_positions(tensors: Mapping[str, NDArray[Any]]) -> Float32Array | None:
    present = [name for name in POSITION_TENSORS if name in tensors]
    if not present:
        return None
    if len(present) < len(POSITION_TENSORS):
        missing = next(name for name in POSITION_TENSORS if name not in tensors)
        raise EventError(f"tensor {missing} is missing: send all three positions or none")
    rows = len(tensors["spacepoint_table_spacepoint_id"])
    arrays = []
    for name, column in zip(POSITION_TENSORS, _POSITION_COLUMNS, strict=True):
        array = _frozen_column(tensors[name], f"spacepoint_table.{column}", _FLOAT32)
        if len(array) != rows:
            raise EventError(
                f"spacepoint_table.{column} has {len(array)} rows but "
                f"spacepoint_table.spacepoint_id has {rows}: "
                "all columns of a table need one length"
            )
        arrays.append(array)
    stacked: Float32Array = np.stack(arrays, axis=1)
    return stacked


def _frozen_positions(position: Any, rows: int) -> Float32Array:
    where = "spacepoint_table.position"
    if not isinstance(position, np.ndarray) or position.dtype != _FLOAT32:
        kind = getattr(position, "dtype", type(position).__name__)
        raise EventError(f"{where} is {kind}: a float32 array is needed")
    if position.shape != (rows, 3):
        raise EventError(f"{where} has shape {list(position.shape)}: [{rows}, 3] is needed")
    finite = np.isfinite(position)
    if not finite.all():
        row, axis = np.argwhere(~finite)[0]
        raise EventError(
            f"spacepoint_table.{_POSITION_COLUMNS[axis]} is {position[row, axis]} in row {row}: "
            "values must be finite"
        )
    return _frozen(position)
