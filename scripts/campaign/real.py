"""The jobs of a campaign, run against real servers instead of simulated ones."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deploy.client.endpoint import Endpoint
from deploy.client.load.connection import AGAIN, Connections, Request, as_request
from deploy.client.load.open_loop import capacity
from deploy.client.load.traffic import simulated_event
from deploy.client.transport import TritonTransport
from deploy.deployment.deployment import Deployment
from deploy.deployment.state import DeploymentFolder
from deploy.engines.base import Engine
from deploy.engines.docker import DockerEngine
from deploy.engines.resolved import Resolved
from deploy.host.console import Say
from deploy.host.errors import LaunchError
from scripts.campaign.farm import Campaign, Jobs, Loss, Patience, Servers
from scripts.campaign.simulation import Outcome, simulate

SERVERS, SHARE, HITS, MODEL = 4, 0.4, 1300, "nugraph3"
_PERIOD_US = 10_000
"""Short: a server that has used its share of a period stands still until the next."""
_PROBING_S, _WAITS_S = 5.0, 60.0


@contextmanager
def running(say: Say) -> Iterator[list[DeploymentFolder]]:
    """Run the servers, each with its share of a core."""
    with ExitStack() as stack:
        folders = []
        for number in range(SERVERS):
            name = f"campaign-{number + 1}"
            wanted = Deployment(name=name, engine="docker", models=(MODEL,), heal=False)
            engine = DockerEngine(Resolved(wanted))
            folder = DeploymentFolder(name)
            if folder.state() is not None:
                raise LaunchError(f"deployment {name} is there", f"numlkit down --name {name}")
            say(f"start {name}")
            engine.prepare(lambda _text: None)
            stack.callback(_stop, engine, folder)
            with folder.starting():
                state = engine.launch(plan=engine.plan(), say=say)
            quota = f"--cpu-quota={int(SHARE * _PERIOD_US)}"
            assert state.container is not None  # Docker has started it
            _docker("update", f"--cpu-period={_PERIOD_US}", quota, state.container)
            folders.append(folder)
        yield folders


def _stop(engine: Engine, folder: DeploymentFolder) -> None:
    state = folder.state()
    if state is not None:
        engine.stop(folder, state)


def _docker(*words: str) -> None:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"docker {words[0]}: {done.stderr.strip()}")


@dataclass(slots=True)
class Found:
    """What real jobs got; latencies of answers in seconds, from the event's arrival."""

    begun: float = field(default_factory=time.perf_counter)
    latencies: list[float] = field(default_factory=list)
    lost: int = 0


class Farm:
    """Connections to all servers; each request goes to the one with the fewest under way."""

    def __init__(self, connections: Sequence[Connections]) -> None:
        self._connections = connections
        self._load = [0] * len(connections)
        self._away: set[int] = set()

    async def infer(self, request: Request, timeout_s: float) -> bool:
        """Send a request once; return whether it was answered."""
        there = [number for number in range(len(self._load)) if number not in self._away]
        fewest = min(self._load[number] for number in there)
        chosen = random.choice([number for number in there if self._load[number] == fewest])
        self._load[chosen] += 1
        try:
            connection = self._connections[chosen]
            answer, status, text = await connection.infer(request.content, timeout_s)
        finally:
            self._load[chosen] -= 1
        if answer is None and status not in AGAIN:
            raise LaunchError(f"a server says {status}: {text}")
        if answer is None and not ("queue" in text or "timeout" in text.lower() or "Dead" in text):
            self._away.add(chosen)
        return answer is not None


async def run_jobs(farm: Farm, jobs: Jobs, requests: Sequence[Request], seconds: float) -> Found:
    """Let jobs run for a while; the first fifth of it is not counted."""
    found, begun = Found(), time.perf_counter()
    found.begun, end = begun + seconds / 5, begun + seconds

    async def job(number: int) -> None:
        while (now := time.perf_counter()) < end:
            await asyncio.sleep(min(random.expovariate(1 / jobs.own_s), end - now))
            number += 1
            arrived = time.perf_counter()
            if arrived < end:
                answered = await deliver(farm, requests[number % len(requests)], jobs.patience)
                ended = time.perf_counter()
                if found.begun <= ended < end:
                    found.lost += not answered
                    if answered:
                        found.latencies.append(ended - arrived)

    tasks = [asyncio.create_task(job(number)) for number in range(jobs.at_once)]
    await asyncio.gather(*tasks)
    return found


async def deliver(farm: Farm, request: Request, patience: Patience) -> bool:
    """Send an event as often as a job does; return whether it was answered."""
    for attempt in range(patience.tries):
        if attempt:
            pause = min(patience.pause_s * 2 ** (attempt - 1), patience.longest_pause_s)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        if await farm.infer(request, patience.timeout_s):
            return True
    return False


async def measure(folders: Sequence[DeploymentFolder], seconds: float, say: Say) -> dict[str, Any]:
    """Measure what a server can answer, then run and simulate jobs; return both as JSON data."""
    urls = [folder.require_state().url("grpc") for folder in folders]
    endpoints = [Endpoint.parse(url) for url in urls]
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(Connections(each, count=2)) for each in endpoints
        ]
        requests = await connections[0].references(_requests(endpoints[0]), _WAITS_S)
        say("measure what the servers can answer, all at once")
        rates = await asyncio.gather(
            *(capacity(each, requests, clients=8, seconds=_PROBING_S) for each in connections)
        )
        one = sum(rates) / len(rates)
        servers = Servers.kit(SERVERS, 1, 1 / one, spread=0.1)
        rounds = []
        for name, jobs, loses in _rounds(servers.capacity):
            say(f"{name}: {jobs.at_once} jobs")
            farm = Farm(connections)
            stopping = asyncio.create_task(_lose(folders[0], seconds / 2)) if loses else None
            found = await run_jobs(farm, jobs, requests, seconds)
            if stopping is not None:
                await stopping
            losses = (Loss(seconds / 2),) if loses else ()
            outcome = simulate(Campaign(servers, jobs, losses, until_s=seconds))
            rounds.append({
                "name": name,
                "simulated": _of_simulation(outcome, seconds),
                "measured": _figures(found.latencies, found.lost, seconds),
            })  # fmt: skip
    return {"capacity": one, "hits": HITS, "rounds": rounds}


def _rounds(capacity: float) -> Iterator[tuple[str, Jobs, bool]]:
    own = 1.0

    def jobs(load: float, patience: Patience) -> Jobs:
        return Jobs(10**9, round(load * capacity * own), 10**9, own, patience)

    kit, hasty = Patience.kit(), Patience(0.4, tries=2, ends_job=False)
    yield "half of what they can answer", jobs(0.5, kit), False
    yield "0.8 of it", jobs(0.8, kit), False
    yield "1.5 times as much: all wait", jobs(1.5, kit), False
    yield "0.8 of it, one of four is lost", jobs(0.8, kit), True
    yield "2.5 times as much, a timeout of 0.4 s, two tries", jobs(2.5, hasty), False


def _requests(endpoint: Endpoint) -> list[Request]:
    transport = TritonTransport(endpoint, timeout=_WAITS_S)
    try:
        model = transport.describe(MODEL)
    finally:
        transport.close()
    generator = np.random.default_rng(HITS)
    events = [simulated_event(model.inputs, HITS, generator) for _ in range(16)]
    return [Request(as_request(model, event), HITS) for event in events]


async def _lose(folder: DeploymentFolder, after_s: float) -> None:
    await asyncio.sleep(after_s)
    await asyncio.to_thread(_docker, "kill", folder.require_state().container or "")


def _of_simulation(outcome: Outcome, seconds: float) -> Mapping[str, float | None]:
    since = seconds / 5
    pairs = zip(outcome.latencies, outcome.answered_at, strict=True)
    return _figures([s for s, at in pairs if at >= since], outcome.refused + outcome.late, seconds)


def _figures(latencies: Sequence[float], lost: int, seconds: float) -> dict[str, float | None]:
    p50, p99 = np.quantile(latencies, (0.5, 0.99)) if latencies else (None, None)
    return {
        "per_s": round(len(latencies) / (0.8 * seconds), 2),
        "lost": round(lost / max(lost + len(latencies), 1), 4),
        "p50_s": None if p50 is None else round(float(p50), 4),
        "p99_s": None if p99 is None else round(float(p99), 4),
    }
