"""The largest requests that are taken, and that mean ill, each in a process of its own.

``python hostile.py NAME WIDTH`` prints as JSON how a model with so many features of a hit took the
request: ``refused`` (the reason, or null if it was answered), ``seconds`` (of a processor), ``mib``
(the most memory that the process had, less what it had before) and ``mib_after``.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numl_serving.errors import EventError
from numl_serving.event import Event
from numl_serving.native import NativeModel
from numl_serving.shapes import weight_shapes
from small_models import NUGRAPH3, make_event

from numl_formats.card import Head

HITS = 100_000
SPACEPOINTS = 300_000
BOTH = HITS

CARD = replace(
    NUGRAPH3,
    network=replace(
        NUGRAPH3.network,
        generation="24.7.1",
        iterations=1,
        nexus_width=32,
        event_width=32,
        nexus_start="position",
    ),
    heads=(Head("filter", "x_filter", "hit", 1, "sigmoid"),),
    clustering=None,
)
"""But for its width, which the command line names. More iterations take no more memory."""


def event(
    hits: int,
    spacepoints: int = 0,
    *,
    plane: Any = 0,
    wire: Any = 0,
    time: Any = 0,
    hit_id: Any = None,
    named: Any = -1,
) -> Event:
    """Make an event; what is one number is the same in all rows."""
    ids = np.arange(hits) if hit_id is None else hit_id
    *places, ids = (np.broadcast_to(each, hits) for each in (plane, wire, time, ids))
    triplets = np.repeat(np.broadcast_to(named, spacepoints), 3)
    return make_event(*places, hit_id=ids, triplets=triplets)


def _in_pairs(hits: int) -> Event:
    """Make an event of pairs of hits at one position, in as many places."""
    places = np.arange(hits) // 2
    return event(hits, wire=places % 3456, time=places // 3456 * 0.37)


def _on_a_circle(hits: int) -> Event:
    """Make an event of hits on a circle."""
    angle = np.arange(hits) * (2 * np.pi / hits)
    wire = np.round(1e6 * np.cos(angle))
    return event(hits, wire=wire, time=np.sin(angle) * 1e6 * 0.3 / 0.055)


_RNG = np.random.default_rng(0)

EVENTS: Mapping[str, Callable[[], Event]] = {
    "scattered": lambda: event(
        HITS, wire=_RNG.integers(0, 3456, HITS), time=_RNG.uniform(0, 6400, HITS)
    ),
    "scattered in three planes": lambda: event(
        HITS,
        plane=np.arange(HITS) % 3,
        wire=_RNG.integers(0, 3456, HITS),
        time=_RNG.uniform(0, 6400, HITS),
    ),
    "one point": lambda: event(HITS, wire=7, time=3),
    "one point far away": lambda: event(HITS, wire=10**9, time=1e30),
    "as many at one point as QHull is asked for": lambda: event(
        15_000, plane=np.arange(15_000) % 3, wire=10**9, time=1e30
    ),
    "one wire": lambda: event(HITS, wire=7, time=_RNG.uniform(0, 6400, HITS)),
    "one time": lambda: event(HITS, wire=np.arange(HITS), time=7),
    "a line": lambda: event(HITS, wire=np.arange(HITS), time=np.arange(HITS)),
    "a grid": lambda: event(HITS, wire=np.arange(HITS) % 645, time=np.arange(HITS) // 645 * 2),
    "four positions": lambda: event(HITS, wire=np.arange(HITS) % 2, time=np.arange(HITS) // 2 % 2),
    "pairs": lambda: _in_pairs(HITS),
    "a circle": lambda: _on_a_circle(HITS),
    "the smallest of numbers": lambda: event(HITS, time=np.arange(HITS) * 1e-44),
    "the largest of numbers": lambda: event(
        HITS, wire=_RNG.integers(-(2**31), 2**31, HITS), time=_RNG.uniform(-3e38, 3e38, HITS)
    ),
    "one time far away": lambda: event(
        HITS, wire=_RNG.integers(0, 3456, HITS), time=np.where(np.arange(HITS) == 5, 3e38, 1)
    ),
    "spacepoints without hits": lambda: event(0, SPACEPOINTS),
    "spacepoints of one hit": lambda: event(1, SPACEPOINTS, named=0),
    "spacepoints of many hits": lambda: event(
        BOTH,
        BOTH,
        plane=np.arange(BOTH) % 3,
        wire=_RNG.integers(0, 3456, BOTH),
        time=_RNG.uniform(0, 6400, BOTH),
        hit_id=np.arange(BOTH) // 3,
        named=np.arange(BOTH) // 3,
    ),
    "one id": lambda: event(BOTH, BOTH, plane=np.arange(BOTH) % 3, hit_id=7, named=7),
    "one id for the hits of few spacepoints": lambda: event(HITS, 10, hit_id=7, named=7),
    "a hit too many": lambda: event(HITS + 1),
    "a spacepoint too many": lambda: event(0, SPACEPOINTS + 1),
}
"""Events by what they are."""


def main(name: str, width: int) -> None:
    """Answer an event in a new network."""
    card = replace(CARD, network=replace(CARD.network, hit_width=width))
    rng = np.random.default_rng(1)
    weights = {
        weight: rng.uniform(-0.1, 0.1, [abs(size) for size in shape]).astype(np.float32)
        for weight, shape in weight_shapes(card).items()
    }
    model, taken = NativeModel(card, weights), EVENTS[name]()
    before = _mib("VmRSS")
    start, refused = time.process_time(), None
    try:
        model.infer(taken)
    except EventError as error:
        refused = str(error)
    seconds = time.process_time() - start
    # Unlike getrusage: that begins at what the process held that started this one.
    peak = _mib("VmHWM")
    facts = {"refused": refused, "seconds": seconds, "mib": peak - before}
    print(json.dumps(facts | {"mib_after": _mib("VmRSS") - before}))


def _mib(field: str) -> float:
    with Path("/proc/self/status").open(encoding="ascii") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
