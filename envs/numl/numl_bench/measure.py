"""Measure several paths from a request's tensors to its answer, interleaved in one process.

On a machine that others use too, only ratios of what ran side by side mean anything. A round
takes every path once, each through all events of a size, in an order that changes from round to
round; a ratio is taken per round.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Tensors: TypeAlias = Mapping[str, NDArray[Any]]
Outputs: TypeAlias = dict[str, NDArray[np.float32]]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timed:
    """An answer and the seconds it took: to the finished graph, and from there to the answer."""

    outputs: Outputs
    preprocess_s: float
    network_s: float


@dataclass(frozen=True, slots=True)
class Path:
    """A way from a request's tensors to the answer."""

    name: str
    answer: Callable[[Tensors], Timed]


STAGES = ("preprocess", "network", "event")


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one path: per stage ``[rounds, events]``; the stage ``event`` is the whole."""

    stages: Mapping[str, Floats]

    def median(self, stage: str = "event") -> float:
        """Return the median over all events (s)."""
        return float(np.median(self.stages[stage]))

    def quantile(self, q: float, stage: str = "event") -> float:
        """Return a quantile over all events (s)."""
        return float(np.quantile(self.stages[stage], q))

    def rate(self) -> float:
        """Return events per second: of the median round, so that one stall does not decide."""
        rounds = self.stages["event"]
        return float(rounds.shape[1] / np.median(rounds.sum(axis=1)))


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster one path is than another: median, and the middle 80% of rounds."""

    median: float
    low: float
    high: float


def ratio(slow: Times, fast: Times, stage: str = "event") -> Ratio:
    """Compare two paths round by round."""
    rounds = slow.stages[stage].sum(axis=1) / fast.stages[stage].sum(axis=1)
    low, median, high = np.quantile(rounds, (0.1, 0.5, 0.9))
    return Ratio(float(median), float(low), float(high))


def measure(
    paths: Sequence[Path], events: Sequence[Tensors], *, seconds: float, min_rounds: int
) -> dict[str, Times]:
    """Time the paths on the events, for about so many seconds.

    Garbage is collected between the turns, so that no path pays for what another left behind.
    """
    samples: dict[str, list[list[tuple[float, float, float]]]] = {path.name: [] for path in paths}
    for path in paths:  # warm: first calls load code and fill caches
        for tensors in events:
            path.answer(tensors)
    gc.collect()
    gc.freeze()
    deadline = time.perf_counter() + seconds
    number = 0
    try:
        while number < min_rounds or time.perf_counter() < deadline:
            turn = number % len(paths)
            for path in (*paths[turn:], *paths[:turn]):
                gc.collect()
                taken = []
                for tensors in events:
                    start = time.perf_counter()
                    timed = path.answer(tensors)
                    whole = time.perf_counter() - start
                    taken.append((timed.preprocess_s, timed.network_s, whole))
                samples[path.name].append(taken)
            number += 1
    finally:
        gc.unfreeze()
    times = {}
    for name, rounds in samples.items():
        array = np.array(rounds)
        times[name] = Times({stage: array[:, :, i] for i, stage in enumerate(STAGES)})
    return times
