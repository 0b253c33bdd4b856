"""Events of given sizes, as the tensors of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numl_demo.simulate import SimulationError, simulate_event

from .measure import Outputs, Tensors

_TOLERANCE = 0.05
_ATTEMPTS = 8


def events_of_size(hits: int, count: int, seed: int) -> list[Tensors]:
    """Simulate events of about this many hits (all planes together, within 5%).

    Raises:
        SimulationError: No event of this size came up.
    """
    low, high = int(hits * (1 - _TOLERANCE)), int(hits * (1 + _TOLERANCE)) + 1
    made: list[Tensors] = []
    for number in range(1, count * _ATTEMPTS + 1):
        try:
            made.append(simulate_event(seed, number, (low, high)).request())
        except SimulationError:
            continue  # this number's particles never make so few or so many hits
        if len(made) == count:
            return made
    raise SimulationError(f"only {len(made)} of {count} events with about {hits} hits were found")


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
    """Read a file of `write_sets`."""
    sets: dict[str, dict[int, Outputs]] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            name, number, tensor = key.rsplit("/", 2)
            sets.setdefault(name, {}).setdefault(int(number), {})[tensor] = arrays[key]
    return {name: [events[number] for number in sorted(events)] for name, events in sets.items()}
