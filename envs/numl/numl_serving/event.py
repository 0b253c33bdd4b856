"""An event as received: named columns of hits and spacepoints, validated here.

Nothing after this module checks the columns again. What an event may hold is data, the `Schema`:
planes and columns follow from the model card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from numl_formats.contract import HITS, POSITIONS, SPACEPOINTS, UVY, Schema, Tensor
from numl_serving.errors import EventError

Int32Array: TypeAlias = NDArray[np.int32]
Float32Array: TypeAlias = NDArray[np.float32]

MAX_INTEGRAL = 1e6
"""Largest hit integral (ADC counts x ticks) that pynuml keeps; it drops an event with more."""

SPACEPOINTS_PER_HIT = 3
"""As many are accepted for each hit that is; the native library has the same ratio."""


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One valid event; either table may be empty.

    Attributes:
        schema: What it was checked against.
        columns: By tensor name, contiguous and read-only: hits have shape ``[H]``, spacepoints
            ``[S]``. A spacepoint's ``hit_id_{plane}`` is the ``hit_id`` of its hit in that plane;
            a number that names no hit of the plane (usually -1) means that there is none.
            Positions (cm): all three, or none.
    """

    schema: Schema
    columns: Mapping[str, NDArray[Any]]

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], schema: Schema = UVY) -> Event:
        """Make an event from arrays under the tensor names of the wire.

        Contiguous arrays are not copied: they must stay unchanged as long as the event is used.

        Raises:
            EventError: A tensor is missing, unknown, or of the wrong type, length or content;
                names table, column and the first offending row.
        """
        columns: dict[str, NDArray[Any]] = {}
        for tensor in schema.tensors:
            if tensor.name in tensors:
                columns[tensor.name] = _column(tensors[tensor.name], tensor)
            elif not tensor.optional:
                raise EventError(
                    f"tensor {tensor.name} is missing: an event needs all of its columns"
                )
            elif any(other.optional and other.name in tensors for other in schema.tensors):
                raise EventError(
                    f"tensor {tensor.name} is missing: send all three positions or none"
                )
        if len(columns) < len(tensors):
            unknown = next(name for name in tensors if name not in columns)
            raise EventError(f"tensor {unknown} is not a column of this model: remove it")
        for table in (HITS, SPACEPOINTS):
            _check_lengths({n: a for n, a in columns.items() if n.startswith(table)})
        _check_planes(columns[f"{HITS}_local_plane"], schema.planes)
        _check_integrals(columns[f"{HITS}_integral"])
        return cls(schema, columns)

    @property
    def num_hits(self) -> int:
        """Number of hits H."""
        return len(self.columns[f"{HITS}_hit_id"])

    @property
    def num_spacepoints(self) -> int:
        """Number of spacepoints S."""
        return len(self.columns[f"{SPACEPOINTS}_spacepoint_id"])

    @property
    def has_positions(self) -> bool:
        """Whether the spacepoints carry positions."""
        return POSITIONS[0] in self.columns

    def hit(self, column: str) -> NDArray[Any]:
        """Return a column of the hit table, ``[H]``."""
        return self.columns[f"{HITS}_{column}"]

    def spacepoint(self, column: str) -> NDArray[Any]:
        """Return a column of the spacepoint table, ``[S]``."""
        return self.columns[f"{SPACEPOINTS}_{column}"]

    def position(self) -> Float32Array:
        """Return the spacepoints' positions, float32 ``[S, 3]``, zeros where there are none."""
        if not self.has_positions:
            return np.zeros((self.num_spacepoints, 3), np.float32)
        return np.stack([self.columns[name] for name in POSITIONS], axis=1)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the event's columns, keyed by request tensor name."""
        return dict(self.columns)


def check_size(tensors: Mapping[str, NDArray[Any]], max_hits: int) -> None:
    """Refuse an event before anything is done with it that takes long.

    Raises:
        EventError: It has more hits than a model is set to accept, or more spacepoints than go
            with so many hits.
    """
    most = {
        f"{HITS}_hit_id": max_hits,
        f"{SPACEPOINTS}_spacepoint_id": SPACEPOINTS_PER_HIT * max_hits,
    }
    for name, limit in most.items():
        rows = np.size(tensors.get(name, ()))
        if rows > limit:
            raise EventError(
                f"{readable(name).partition('.')[0]} has {rows} rows: this server accepts at most "
                f"{limit} (limits.hits in its deployment file)"
            )


def empty_event(schema: Schema) -> Event:
    """Return an event without hits and spacepoints."""
    required = [tensor for tensor in schema.tensors if not tensor.optional]
    return Event.from_tensors({t.name: np.empty(0, t.dtype) for t in required}, schema)


def readable(tensor: str) -> str:
    """Split a tensor's name into table and column."""
    for table in (HITS, SPACEPOINTS):
        if tensor.startswith(table):
            return f"{table}.{tensor.removeprefix(f'{table}_')}"
    return tensor


def _column(array: Any, tensor: Tensor) -> NDArray[Any]:
    fault = None
    if not isinstance(array, np.ndarray):
        fault = f"is a {type(array).__name__}: expected a numpy array"
    elif array.dtype != tensor.dtype:
        fault = f"has dtype {array.dtype}: expected {tensor.dtype}"
    elif array.ndim != 1:
        fault = f"has shape {list(array.shape)}: expected one dimension"
    elif tensor.datatype == "FP32" and not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        fault = f"is {array[row]} in row {row}: values must be finite"
    if fault is not None:
        raise EventError(f"{readable(tensor.name)} {fault}")
    # A view: the caller's own array keeps its flags.
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _check_lengths(columns: Mapping[str, NDArray[Any]]) -> None:
    (first, rows), *rest = ((name, len(array)) for name, array in columns.items())
    for name, length in rest:
        if length != rows:
            raise EventError(
                f"{readable(name)} has {length} rows but {readable(first)} has {rows}: "
                "all columns of a table must have the same length"
            )


def _check_planes(local_plane: Int32Array, planes: Sequence[str]) -> None:
    # Read as unsigned, a negative number is large: one comparison catches both.
    outside = local_plane.view(np.uint32) >= len(planes)
    if outside.any():
        row = int(np.argmax(outside))
        known = [f"{index} ({name})" for index, name in enumerate(planes)]
        raise EventError(
            f"hit_table.local_plane is {local_plane[row]} in row {row}: "
            f"planes are {' and '.join(filter(None, (', '.join(known[:-1]), known[-1])))}"
        )


def _check_integrals(integral: Float32Array) -> None:
    if len(integral) and integral.max() > MAX_INTEGRAL:
        row = int(np.argmax(integral > MAX_INTEGRAL))
        raise EventError(
            f"hit_table.integral is {integral[row]:.6g} in row {row}: "
            f"pynuml drops events with an integral above {MAX_INTEGRAL:g}: leave this event out"
        )
