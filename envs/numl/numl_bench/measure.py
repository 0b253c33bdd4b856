"""Time several paths from a request's tensors to its answer, interleaved in one process.

On a machine that others use too, only ratios of what ran side by side mean anything. A round
takes every path once, each through all events of a size, in an order that changes from round to
round.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

Tensors: TypeAlias = Mapping[str, NDArray[Any]]
Outputs: TypeAlias = dict[str, NDArray[Any]]
Seconds: TypeAlias = list[list[tuple[float, float, float, float]]]


@dataclass(frozen=True, slots=True)
class Timed:
    """An answer and its timing: seconds for the graph, and for the network."""

    outputs: Outputs
    preprocess_s: float
    network_s: float


@dataclass(frozen=True, slots=True)
class Path:
    """A way from a request's tensors to the answer."""

    name: str
    answer: Callable[[Tensors], Timed]


def warm(paths: Sequence[Path], events: Sequence[Tensors]) -> None:
    """Run every path on every event once, since first calls load code and fill caches."""
    for path in paths:
        for tensors in events:
            path.answer(tensors)


def measure(
    paths: Sequence[Path], events: Sequence[Tensors], *, seconds: float, first: int = 0
) -> dict[str, Seconds]:
    """Time the paths on the events, for at least one round and about so many seconds.

    Garbage is collected between the turns, so that no path pays for what another left behind.

    Args:
        paths: The paths, all of them warm.
        events: The events.
        seconds: How long to go on.
        first: Number of the first round: it says which path begins.

    Returns:
        By path, ``[rounds][events]``: the seconds to the graph, in the network, and in all; and
        those of processor time in all, which other work on the machine disturbs least.
    """
    samples: dict[str, Seconds] = {path.name: [] for path in paths}
    deadline = time.perf_counter() + seconds
    number = 0
    gc.collect()
    gc.freeze()
    try:
        while not number or time.perf_counter() < deadline:
            turn = (first + number) % len(paths)
            for path in (*paths[turn:], *paths[:turn]):
                gc.collect()
                taken = []
                for tensors in events:
                    start, used = time.perf_counter(), time.process_time()
                    timed = path.answer(tensors)
                    whole, used = time.perf_counter() - start, time.process_time() - used
                    taken.append((timed.preprocess_s, timed.network_s, whole, used))
                samples[path.name].append(taken)
            number += 1
    finally:
        gc.unfreeze()
    return samples
