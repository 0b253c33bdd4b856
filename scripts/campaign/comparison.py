"""The same jobs, run against real servers and simulated, and how far the two differ."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from deploy.client.endpoint import Endpoint
from deploy.client.load.connection import Connections, Request
from deploy.client.load.open_loop import capacity
from deploy.deployment.state import DeploymentFolder
from deploy.host.console import Say
from scripts.campaign.farm import Campaign, Jobs, Loss, Patience, Servers
from scripts.campaign.real import (
    HITS,
    SERVERS,
    WAITS_S,
    Farm,
    Found,
    Seen,
    computed,
    lose,
    rate,
    run_jobs,
    simulated_requests,
)
from scripts.campaign.simulation import simulate

WITHIN = 0.2
"""By how much a simulated figure may differ from the measured one."""

_OWN_S, _PROBING_S, _PACE_S, _SIMULATED = 1.0, 4.0, 2.0, 10
SHORTEST_S = 2 * _PACE_S
"""Of a row: in less, servers may have computed nothing whose rate could be told."""
_SETTLES = 0.2
_ALONE = (0.05, 0.5, 0.95, 0.99)
_MOST_LOST, _FEW_LOST = 0.5, 0.02


@dataclass(frozen=True, slots=True)
class _Row:
    """Jobs that ask for ``load`` times what the servers can answer."""

    name: str
    load: float
    patience: Patience
    loses: bool = False


_ROWS = (
    _Row("half of what they can answer", 0.5, Patience.kit()),
    _Row("0.8 of it", 0.8, Patience.kit()),
    _Row("1.5 times as much: all wait", 1.5, Patience.kit()),
    _Row(
        "2.5 times as much, a timeout of 2 s, two tries",
        2.5,
        Patience(2.0, tries=2, ends_job=False),
    ),
    _Row("the same, a timeout of 0.4 s", 2.5, Patience(0.4, tries=2, ends_job=False)),
    _Row("0.8 of it, one of four is lost", 0.8, Patience.kit(), loses=True),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A run of all rows.

    Attributes:
        alone: Seconds of a lone client's events.
        busy: Events/s of one server while all are busy, measured before the first row.
        seen: What servers have done, in each row from its beginning to its end.
    """

    alone: Sequence[float]
    busy: float
    seen: list[list[Seen]] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """Events/s that a server computes while it has any, in each row."""
        return [rate(row[0], row[-1]) for row in self.seen]

    def servers(self, row: int) -> Servers:
        """Return the servers as they are simulated: as fast as they were in the row."""
        mean = self.rates[row]
        paces = tuple(rate(*two) / mean or 1.0 for two in pairwise(self.seen[row]))
        servers = Servers.kit(SERVERS, 1, 1 / mean)
        return replace(servers, times=tuple(self.alone), paces=paces, pace_s=_PACE_S)

    def jobs(self, row: int) -> Jobs:
        """Return the jobs of a row."""
        at_once = round(_ROWS[row].load * SERVERS * self.busy * _OWN_S)
        return Jobs(10**9, at_once, 10**9, _OWN_S, _ROWS[row].patience)


async def measure(folders: Sequence[DeploymentFolder], seconds: float, say: Say) -> Measured:
    """Measure what servers can answer, then run all rows; the last one kills a server."""
    endpoints = [Endpoint.parse(folder.require_state().url("grpc")) for folder in folders]
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(Connections(each, count=2)) for each in endpoints
        ]
        requests = await connections[0].references(simulated_requests(endpoints[0]), WAITS_S)
        times = await asyncio.gather(*(_alone(each, requests) for each in connections))
        rates = await asyncio.gather(
            *(capacity(each, requests, clients=8, seconds=_PROBING_S) for each in connections)
        )
        run = Measured([latency for each in times for latency in each], float(np.mean(rates)))
        say(f"a server answers {run.busy:.1f}/s")
        for number, row in enumerate(_ROWS):
            jobs = run.jobs(number)
            say(f"{row.name}: {jobs.at_once} jobs")
            losing = asyncio.create_task(lose(folders[0], seconds / 2)) if row.loses else None
            farm, settles = Farm(connections), _SETTLES * seconds
            looking = asyncio.create_task(_look(folders, farm, seconds))
            run.found.append(await run_jobs(farm, jobs, requests, settles, seconds))
            if losing is not None:
                await losing
            run.seen.append(await looking)
    return run


async def _look(folders: Sequence[DeploymentFolder], farm: Farm, seconds: float) -> list[Seen]:
    """Return what servers have done at the beginning of each part of a while, and at its end."""
    found = []
    begun = time.perf_counter()
    for part in range(round(seconds / _PACE_S) + 1):
        await asyncio.sleep(begun + part * _PACE_S - time.perf_counter())
        done = await asyncio.to_thread(lambda: [computed(each) for each in folders])
        found.append(Seen(done, farm.busy_s()))
    return found


def compared(runs: Sequence[Measured], seconds: float) -> dict[str, Any]:
    """Simulate what was measured; return both as JSON data."""
    rows = []
    for number, row in enumerate(_ROWS):
        simulated = [found for run in runs for found in _simulated(run, number, seconds)]
        measured = [run.found[number] for run in runs]
        rows.append({
            "name": row.name, "simulated": _figures(simulated), "measured": _figures(measured),
        })  # fmt: skip
    return {
        "busy": [round(run.busy, 2) for run in runs],
        "rates": [[round(rate, 2) for rate in run.rates] for run in runs],
        "alone_s": [np.quantile(run.alone, _ALONE).round(4).tolist() for run in runs],
        "hits": HITS, "seconds": seconds, "rows": rows,
    }  # fmt: skip


async def _alone(connection: Connections, requests: Sequence[Request]) -> list[float]:
    """Return what events take, one after the other, in a server that has no others."""
    latencies: list[float] = []
    end = time.perf_counter() + 2 * _PROBING_S
    while (begun := time.perf_counter()) < end:
        request = requests[len(latencies) % len(requests)]
        await connection.infer(request.content, WAITS_S)
        latencies.append(time.perf_counter() - begun)
    return latencies


def _simulated(run: Measured, row: int, seconds: float) -> list[Found]:
    """Simulate a row several times, each as long as the real one; it is counted alike."""
    servers, jobs = run.servers(row), run.jobs(row)
    losses = (Loss(seconds / 2),) if _ROWS[row].loses else ()
    settles, found = _SETTLES * seconds, []
    for seed in range(_SIMULATED):
        outcome = simulate(Campaign(servers, jobs, losses, until_s=seconds), seed)
        answers = zip(outcome.latencies, outcome.answered_at, strict=True)
        latencies = [latency for latency, at in answers if at >= settles]
        lost = sum(at >= settles for at in outcome.failed_at)
        found.append(Found(seconds - settles, latencies, lost))
    return found


def _figures(runs: Sequence[Found]) -> dict[str, Any]:
    """Return figures of all runs together, and the p99 of each, the shortest first."""
    latencies = [latency for run in runs for latency in run.latencies]
    lost = sum(run.lost for run in runs)
    each = sorted(float(np.quantile(run.latencies, 0.99)) for run in runs if run.latencies)
    p50, p99 = np.quantile(latencies, (0.5, 0.99)) if latencies else (0.0, 0.0)
    return {
        "answered": len(latencies),
        "per_s": round(len(latencies) / sum(run.seconds for run in runs), 2),
        "lost": round(lost / max(lost + len(latencies), 1), 4),
        "p50_s": round(float(p50), 4),
        "p99_s": round(float(p99), 4),
        "p99_of_each_s": [round(p99, 4) for p99 in each],
    }


def differences(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield what is compared in a row, and simulated by measured less 1.

    A simulated p99 is compared with the nearest that a single run had, or between them. Where most
    events are lost, their part is compared; the few answers say nothing.
    """
    simulated, measured = row["simulated"], row["measured"]
    if measured["lost"] <= _MOST_LOST:
        for name in ("per_s", "p50_s"):
            yield name, simulated[name] / max(measured[name], 1e-9) - 1
        each = measured["p99_of_each_s"]
        nearest = min(max(simulated["p99_s"], each[0]), each[-1])
        yield "p99_s", simulated["p99_s"] / nearest - 1
    if max(simulated["lost"], measured["lost"]) > _FEW_LOST:
        yield "lost", simulated["lost"] / max(measured["lost"], 1e-9) - 1
