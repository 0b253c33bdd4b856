"""What a load test sends: who, how often, which events. Frozen data, and the times of arrivals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numl_formats.contract import HITS, SPACEPOINTS, planes_of

Tensors = Mapping[str, NDArray[Any]]

_WIRES, _TICKS = 2400, 6000
"""Where the hits of a simulated event lie: a plane of MicroBooNE's size."""
_SPACEPOINTS = 0.4
"""Spacepoints of a simulated event, for each hit; as many as real events have."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Clients that send alike.

    Attributes:
        rate: Events per second that arrive, whether or not earlier ones have been answered.
        hits: Hits of an event; None: events of a file are sent.
    """

    name: str
    rate: float
    hits: int | None = None


@dataclass(frozen=True, slots=True)
class Patience:
    """What clients do about a request that is refused or late.

    Attributes:
        deadline_s: How long a request may take; gRPC cancels it then.
        retries: How often a failed request is sent again.
        pause_s: How long a client waits before it sends a request again.
    """

    deadline_s: float = 2.0
    retries: int = 2
    pause_s: float = 0.0


def arrivals(rate: float, seconds: float, random: np.random.Generator) -> NDArray[np.float64]:
    """Return when events arrive (s), as independent clients send them: a Poisson process."""
    count = random.poisson(rate * seconds)
    return np.sort(random.uniform(0.0, seconds, count))


def simulated_event(
    inputs: Mapping[str, str], hits: int, random: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """Return an event of uniformly distributed hits, spread over the planes of a model.

    Args:
        inputs: Triton's data types of the model's inputs, by name.
    """
    planes = planes_of(inputs)
    plane = np.sort(random.integers(0, len(planes), hits))
    columns = {
        "hit_id": np.arange(hits),
        "local_plane": plane,
        "local_time": random.uniform(0, _TICKS, hits),
        "local_wire": random.integers(0, _WIRES, hits),
        "integral": random.gamma(2.0, 70.0, hits),
        "rms": random.gamma(4.0, 1.2, hits),
    }
    tensors: dict[str, NDArray[Any]] = {f"{HITS}_{name}": v for name, v in columns.items()}
    points = int(hits * _SPACEPOINTS)
    tensors[f"{SPACEPOINTS}_spacepoint_id"] = np.arange(points)
    for number, name in enumerate(planes):
        own = np.flatnonzero(plane == number)
        chosen = random.choice(own, points) if own.size else np.full(points, -1)
        tensors[f"{SPACEPOINTS}_hit_id_{name}"] = chosen
    return {
        name: tensors[name].astype(np.float32 if datatype == "FP32" else np.int32)
        for name, datatype in inputs.items()
        if name in tensors
    }
