"""Hypothesis strategies for events: plain ones and those that break graph builders."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numl_serving.event import Event
from small_models import make_event

HUGE_TIME = 1e30


def _scattered(rng: np.random.Generator, hits: int) -> tuple[Any, Any]:
    return rng.integers(0, 3456, hits), rng.uniform(0, 6400, hits)


def _on_a_line(rng: np.random.Generator, hits: int) -> tuple[Any, Any]:
    step = rng.integers(0, hits + 1, hits)
    return 100 + step * rng.integers(0, 3), 500 + step * float(rng.integers(0, 20))


def _on_a_grid(rng: np.random.Generator, hits: int) -> tuple[Any, Any]:
    return rng.integers(0, 5, hits), rng.integers(0, 5, hits) * 10.0


def _coincident(rng: np.random.Generator, hits: int) -> tuple[Any, Any]:
    return np.full(hits, rng.integers(0, 3456)), np.full(hits, rng.uniform(0, 6400))


def _with_a_huge_time(rng: np.random.Generator, hits: int) -> tuple[Any, Any]:
    wire, time = _scattered(rng, hits)
    time[: hits // 3] = HUGE_TIME
    return wire, time


_SHAPES = (_scattered, _scattered, _on_a_line, _on_a_grid, _coincident, _with_a_huge_time)


@st.composite
def events(draw: st.DrawFn, *, max_hits: int = 60) -> Event:
    """Draw an event: each plane has its own number of hits and its own pattern of them.

    Hit ids are distinct or drawn with repetition; spacepoints name hits of the right plane, of
    another plane, unknown ones, or none.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    planes, wires, times = [], [], []
    for plane in range(3):
        hits = draw(st.one_of(st.integers(0, 5), st.integers(0, max_hits)))
        wire, time = draw(st.sampled_from(_SHAPES))(rng, hits)
        planes.append(np.full(hits, plane))
        wires.append(wire)
        times.append(time)
    order = rng.permutation(sum(map(len, planes)))
    hits = len(order)
    repeated = draw(st.booleans())
    hit_id = rng.integers(-1, max(1, hits // 2), hits) if repeated else rng.permutation(hits)
    triplets = rng.integers(-1, hits + 2, (draw(st.integers(0, max_hits)), 3))
    return make_event(
        np.concatenate(planes)[order],
        np.concatenate(wires)[order],
        np.concatenate(times)[order],
        hit_id=hit_id,
        triplets=triplets,
    )
