"""Load servers far above what they can answer, in turn: with bounds, without, behind a door."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from deploy.client.endpoint import Endpoint
from deploy.client.load.connection import Connections, Request, as_request
from deploy.client.load.open_loop import Round, capacity, offer
from deploy.client.load.summary import document
from deploy.client.load.traffic import Patience, Tenant, simulated_event
from deploy.deployment.limits import FEWEST_BOUNDED, Limits
from deploy.engines.resolved import Resolved
from deploy.host.console import Say
from scripts.benchmarks.document import Document
from scripts.benchmarks.server import (
    REQUEST_S,
    BenchmarkEngine,
    BenchmarkServer,
    benchmark_deployment,
    benchmark_server,
)

MODEL = "nugraph3"
LIGHT, ORDINARY, LARGEST, REFUSED = 200, 1300, 25_000, 100_000
"""Hits of events; the last two are what is allowed by default, and what is not."""
RATES = (0.5, 1, 2, 5, 10)
KINDS: Mapping[str, Limits] = {
    "unbounded": Limits(waiting=0, wait_s=0, hits=REFUSED),
    "bounded": Limits(),
}
DOOR = "bounded, behind the front door"
OVERLOADED = (*KINDS, DOOR)
CLOSED = (*KINDS, EQUAL := "unbounded, three processes")
"""Servers that clients wait for: the last one has as many processes as one with bounds."""
CLIENTS = (1, 8)
LIGHT_RATE = 10
HEAVY = {REFUSED: 20.0, LARGEST: 10.0}
"""Events a second that are sent beside the light ones, by their hits."""
PATIENCE = Patience(deadline_s=2.0, retries=2, pause_s=0.0)
_LOOK_S = 0.2
_SETTLE_S = 1.5
_CYCLES = 3
_SLICE_S = 0.5


class Peak:
    """The most memory that a server and its model processes held at once.

    What they share (events and answers in flight) counts once.
    """

    def __init__(self, server: int) -> None:
        self._server, self._ended = server, threading.Event()
        self.first_mb = self.most_mb = self._now()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _now(self) -> float:
        total = 0
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._server)
            for process in (first, *first.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    total += process.memory_full_info().pss
        return total / 1e6

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.most_mb = max(self.most_mb, self._now())


@contextmanager
def servers(core: int, others: Sequence[int], say: Say) -> Iterator[dict[str, BenchmarkServer]]:
    """Run a server of each kind on one core, and keep this process to the others."""
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core})
        started: dict[str, BenchmarkServer] = {}
        for kind in CLOSED:
            changes: dict[str, Any] = {
                "name": f"benchmark-{len(started)}-{os.getpid()}",
                "limits": KINDS.get(kind, KINDS["unbounded"]),
                "instances": FEWEST_BOUNDED if kind == EQUAL else None,
            }
            deployment = benchmark_deployment([MODEL]).model_copy(update=changes)
            BenchmarkEngine(Resolved(deployment)).prepare(say)
            started[kind] = stack.enter_context(benchmark_server(deployment, ("ours",), say))
        os.sched_setaffinity(0, others)
        yield started


@contextmanager
def front_door(server: BenchmarkServer) -> Iterator[Endpoint]:
    """Run the chart's Envoy before a server, without a limit of requests a second.

    It shares this process's cores: on a cluster it has its own.
    """
    from tests.chart import Site
    from tests.doors import Server, envoy

    ports, many = server.plan.ports, 1_000_000
    quota = {"requestsPerSecond": many, "burst": many}
    values = {"models": [MODEL], "frontDoor": {"quota": quota}}
    with tempfile.TemporaryDirectory() as folder:
        behind, site = [Server(ports.http, ports.grpc)], Site(("cpu",), values)
        with envoy(Path(folder), behind, site) as door:
            yield Endpoint.parse(f"grpcs://127.0.0.1:{door.port}", ca=door.authority.file)


async def measure(
    running: Mapping[str, BenchmarkServer], door: Endpoint, *, seconds: float, say: Say
) -> Document:
    """Load the servers in turn; return the run as JSON can hold it.

    Args:
        running: The servers, by kind.
        door: That of the one with bounds.
        seconds: For each rate.
    """
    found: Document = {"first_mb": {}, "most_mb": {}, "stubs_kept": {}}
    async with AsyncExitStack() as stack:
        opened = {}
        peaks = {}
        stubs = {kind: server.stubs() for kind, server in running.items()}
        for kind, server in running.items():
            endpoint = Endpoint.parse(f"grpc://{server.addresses['grpc']}")
            opened[kind] = await stack.enter_async_context(Connections(endpoint, count=4))
            identity = server.process.identity
            assert identity is not None  # it has started
            peaks[kind] = stack.enter_context(Peak(identity.pid))
        first = next(iter(running.values()))
        events = {
            hits: await opened["unbounded"].references(_requests(first, hits), REQUEST_S)
            for hits in (LIGHT, ORDINARY, *HEAVY)
        }
        say("clients that wait for their answers")
        found["closed"] = await _closed(opened, events, rounds=max(3, int(4 * seconds)))
        del opened[EQUAL]
        best = max(each["per_s"]["unbounded"] for each in found["closed"] if _is_capacity(each))
        found["capacity"] = best
        behind = await stack.enter_async_context(Connections(door, count=4))
        overloaded = {**opened, DOOR: behind}
        found["overload"] = await _overload(overloaded, events[ORDINARY], best, seconds, say)
        found["beside"] = {}
        for hits, often in HEAVY.items():
            light, heavy = Tenant("light", LIGHT_RATE, LIGHT), Tenant("heavy", often, hits)
            for kind, connections in opened.items():
                say(f"{kind}: events of {hits} hits beside those of {LIGHT}")
                traffic = [(light, events[LIGHT]), (heavy, events[hits])]
                told = document([await _offer(connections, traffic, 10.0)])
                found["beside"].setdefault(str(hits), {})[kind] = told["rounds"][0]["tenants"]
        for kind in KINDS:
            server = running[kind]
            found["first_mb"][kind] = round(peaks[kind].first_mb)
            found["most_mb"][kind] = round(peaks[kind].most_mb)
            found["stubs_kept"][kind] = server.stubs() == stubs[kind]
    return found


def _requests(server: BenchmarkServer, hits: int) -> list[Request]:
    model, random = server.describe(MODEL), np.random.default_rng(hits)
    count = max(1, min(16, REFUSED // hits))
    return [
        Request(as_request(model, simulated_event(model.inputs, hits, random)), hits)
        for _ in range(count)
    ]


async def _offer(
    connections: Connections, traffic: Sequence[tuple[Tenant, Sequence[Request]]], seconds: float
) -> Round:
    found = await offer(connections, traffic, PATIENCE, seconds=seconds, seed=1)
    await asyncio.sleep(_SETTLE_S)  # what was cancelled last leaves the queue
    return found


async def _overload(
    opened: Mapping[str, Connections],
    events: Sequence[Request],
    capacity: float,
    seconds: float,
    say: Say,
) -> Document:
    """Offer each rate to each server, several times in turn; return the median one of each."""
    rounds: dict[tuple[str, float], list[Round]] = {}
    for cycle in range(_CYCLES):
        for rate in RATES:
            clients = Tenant("clients", rate * capacity, ORDINARY)
            for kind, connections in opened.items():
                say(f"{cycle + 1} of {_CYCLES}, {kind}: {rate:g} times what one can answer")
                found = await _offer(connections, [(clients, events)], seconds)
                rounds.setdefault((kind, rate), []).append(found)
    for each in rounds.values():
        each.sort(key=lambda found: found.tenants["clients"].meanwhile)
    return {kind: document([rounds[kind, rate][_CYCLES // 2] for rate in RATES]) for kind in opened}


async def _closed(
    opened: Mapping[str, Connections], events: Mapping[int, Sequence[Request]], *, rounds: int
) -> list[Document]:
    """Return what clients get that send the next event when they have an answer."""
    found = []
    for hits in (LIGHT, ORDINARY):
        for clients in CLIENTS:
            rates: dict[str, list[float]] = {kind: [] for kind in opened}
            for _ in range(rounds):
                for kind, connections in opened.items():
                    rate = await capacity(
                        connections, events[hits], clients=clients, seconds=_SLICE_S
                    )
                    rates[kind].append(rate)
            found.append({
                "hits": hits,
                "clients": clients,
                "per_s": {kind: round(median(each), 2) for kind, each in rates.items()},
                "ratios": {
                    kind: round(median(np.divide(rates["bounded"], rates[kind]).tolist()), 3)
                    for kind in CLOSED
                    if kind != "bounded"
                },
            })  # fmt: skip
    return found


def _is_capacity(each: Mapping[str, Any]) -> bool:
    return bool(each["hits"] == ORDINARY and each["clients"] == max(CLIENTS))
