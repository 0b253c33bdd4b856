"""Events of given sizes, as the tensors of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numl_demo.simulate import SimulatedEvent, SimulationError, simulate_event
from numl_serving.event import INPUT_TENSORS
from numpy.typing import NDArray

Tensors: TypeAlias = Mapping[str, NDArray[Any]]

_TOLERANCE = 0.05
_ATTEMPTS = 8


def events_of_size(hits: int, count: int, seed: int) -> list[Tensors]:
    """Simulate events with about so many hits (all planes together, within 5%).

    Raises:
        SimulationError: No event of this size came up.
    """
    low, high = int(hits * (1 - _TOLERANCE)), int(hits * (1 + _TOLERANCE)) + 1
    made: list[Tensors] = []
    for number in range(1, count * _ATTEMPTS + 1):
        try:
            made.append(request_tensors(simulate_event(seed, number, (low, high))))
        except SimulationError:
            continue  # this number's particles never make so few or so many hits
        if len(made) == count:
            return made
    raise SimulationError(f"only {len(made)} events with about {hits} hits came up, not {count}")


def typical_events(hits: int, count: int, seed: int) -> list[Tensors]:
    """Simulate twice as many events, and return the half that is nearest to the median.

    In numbers of spacepoints: about one event in six has several times as many as the others of
    its size, and takes several times as long. It would be a set of its own.

    Raises:
        SimulationError: Fewer than twice as many events of this size came up.
    """
    events = events_of_size(hits, 2 * count, seed)
    spacepoints = [len(event["spacepoint_table_spacepoint_id"]) for event in events]
    distance = np.abs(np.array(spacepoints) - np.median(spacepoints))
    return [events[number] for number in sorted(np.argsort(distance, kind="stable")[:count])]


def request_tensors(event: SimulatedEvent) -> Tensors:
    """Return an event under the tensor names of the wire."""
    hits, spacepoints = event.tables["hit_table"], event.tables["spacepoint_table"]
    columns = {f"hit_table_{name}": column[:, 0] for name, column in hits.items()}
    columns["spacepoint_table_spacepoint_id"] = spacepoints["spacepoint_id"][:, 0]
    for axis, plane in enumerate("uvy"):
        columns[f"spacepoint_table_hit_id_{plane}"] = spacepoints["hit_id"][:, axis]
    return {name: np.ascontiguousarray(columns[name], dtype) for name, dtype in INPUT_TENSORS}


def write_sets(path: Path, sets: Mapping[str, Sequence[Tensors]]) -> None:
    """Write sets of events to a file for `read_sets`."""
    arrays = {
        f"{name}/{number}/{tensor}": array
        for name, events in sets.items()
        for number, event in enumerate(events)
        for tensor, array in event.items()
    }
    np.savez(path, **arrays)


def read_sets(path: Path) -> dict[str, list[Tensors]]:
    """Read what `write_sets` has written."""
    sets: dict[str, dict[int, dict[str, NDArray[Any]]]] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            name, number, tensor = key.rsplit("/", 2)
            sets.setdefault(name, {}).setdefault(int(number), {})[tensor] = arrays[key]
    return {name: [events[number] for number in sorted(events)] for name, events in sets.items()}
