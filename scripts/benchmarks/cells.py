"""What is measured, as data: sets of events, ways to answer them, and the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Tensors: TypeAlias = Mapping[str, NDArray[Any]]
Floats: TypeAlias = NDArray[np.float64]
Protocol = Literal["http", "grpc", "shm"]
Server = Literal["ours", "today", "best", "fixed"]

PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc", "shm")
SERVERS: tuple[Server, ...] = ("ours", "today", "best")
TITLES: Mapping[str, str] = {
    "ours": "numl_serving",
    "today": "reference as served today",
    "best": "reference at its best",
}
"""What answers: ours; NuGraph's own code in one instance, with torch's own threads and
gradients on; and the same with an instance per core, one thread each and gradients off. A fourth,
``fixed``, computes nothing: it is asked only where releases of Triton are compared."""


@dataclass(frozen=True, slots=True)
class EventSet:
    """Events of about one size; with ``loaded`` ones throughput is measured, too."""

    name: str
    events: Sequence[Tensors]
    loaded: bool

    @property
    def hits(self) -> float:
        """The mean number of hits."""
        return float(np.mean([len(event["hit_table_hit_id"]) for event in self.events]))

    @property
    def spacepoints(self) -> float:
        """The mean number of spacepoints."""
        key = "spacepoint_table_spacepoint_id"
        return float(np.mean([len(event[key]) for event in self.events]))


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to send the events of a set to a server.

    ``concurrency`` clients have one request in flight each; ``shm`` is gRPC with tensors in system
    shared memory.
    """

    model: str
    events: str
    server: Server
    protocol: Protocol
    concurrency: int


def plan_cells(
    model: str,
    events: EventSet,
    *,
    protocols: Sequence[Protocol],
    concurrencies: Sequence[int],
    servers: Sequence[Server],
) -> list[Cell]:
    """Return what to measure of a model with a set of events, in order.

    Ours over every protocol; the references over gRPC, or what is given first if that is not
    among the protocols. Concurrency above the lowest for loaded sets only, and of the reference
    at its best only the lowest and the highest, since each of its events costs so much time.
    """
    lowest, highest = min(concurrencies), max(concurrencies)
    common: Protocol = "grpc" if "grpc" in protocols else protocols[0]
    cells = []
    for concurrency in concurrencies if events.loaded else (lowest,):
        for server in servers:
            if server == "best" and (not events.loaded or concurrency not in (lowest, highest)):
                continue
            for protocol in protocols if server == "ours" else (common,):
                cells.append(Cell(model, events.name, server, protocol, concurrency))
    return cells


STAGES = ("preprocess", "network", "event", "cpu")


@dataclass(slots=True)
class PathTimes:
    """Seconds of one path in one process: ``[rounds, events, 4]``, the last axis as in `STAGES`.

    To the graph, in the network, in all, and processor time in all.
    """

    rounds: Floats

    def of(self, stage: str) -> Floats:
        """Return ``[rounds, events]`` of a stage."""
        seconds: Floats = self.rounds[:, :, STAGES.index(stage)]
        return seconds

    def rate(self) -> Floats:
        """Return events per second in each round."""
        seconds = self.of("event")
        rates: Floats = seconds.shape[1] / seconds.sum(axis=1)
        return rates


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of a cell gave: seconds of each round trip, as the client sees it.

    ``rate`` has answers per second while all clients were at work. Mean seconds: of an event on its
    way to the graph and in the network, of a request in Triton's queue and in its backend, all of
    the model's time included.
    """

    latencies: Floats
    rate: float
    preprocess: float
    network: float
    queue: float
    execute: float


@dataclass(slots=True)
class Results:
    """All that a run has measured.

    Attributes:
        models: Architecture and variant by model.
        sets: Mean hits, mean spacepoints and number of events by name.
        in_process: By model, set and path.
        differences: What any answer had against the reference's, one line each.
    """

    machine: dict[str, Any]
    models: dict[str, str] = field(default_factory=dict)
    sets: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    in_process: dict[tuple[str, str, str], PathTimes] = field(default_factory=dict)
    served: dict[Cell, list[Turn]] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
