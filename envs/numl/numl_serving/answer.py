"""Answers to events: outputs by name, or the reason there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from numl_serving.errors import EventError, ServingError
from numl_serving.event import Event, readable

Outputs: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The answer to several events.

    Attributes:
        outputs: For each event, in the order of the request, its outputs by name, or the error
            that it met alone.
        batches: Times that the network ran.
        preprocess_s: Seconds spent on building graphs.
        network_s: Seconds spent in the network, transfers to and from the device included.
    """

    outputs: Sequence[Outputs | ServingError]
    batches: int
    preprocess_s: float
    network_s: float


def check_finite(event: Event, outputs: Mapping[str, NDArray[Any]]) -> None:
    """Check that an event's answer holds finite numbers only.

    Raises:
        EventError: It does not.
    """
    if not all(np.isfinite(array).all() for array in outputs.values()):
        raise EventError(too_large(event))


def too_large(event: Event) -> str:
    """Name the value of an event that most likely overflowed the network."""
    columns = {
        name: np.abs(array.astype(np.float64))
        for name, array in event.columns.items()
        if array.dtype.kind == "f" and len(array)
    }
    if not columns:
        return "the network's answer to this event is not finite"
    largest = max(columns, key=lambda name: float(columns[name].max()))
    row = int(columns[largest].argmax())
    return (
        f"{readable(largest)} has magnitude {columns[largest][row]:.3g} "
        f"in row {row}: numbers of this size exceed the network's float32 arithmetic"
    )
