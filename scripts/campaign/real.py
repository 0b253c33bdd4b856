"""The jobs of a campaign, run against real servers instead of simulated ones."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from deploy.client.endpoint import Endpoint
from deploy.client.load.connection import AGAIN, Connections, Request, as_request
from deploy.client.load.traffic import simulated_event
from deploy.client.transport import TritonTransport
from deploy.deployment.deployment import Deployment
from deploy.deployment.state import DeploymentFolder
from deploy.engines.base import Engine
from deploy.engines.docker import DockerEngine
from deploy.engines.resolved import Resolved
from deploy.host.console import Say
from deploy.host.errors import LaunchError
from numl_formats.inference import is_busy
from scripts.campaign.farm import Jobs, Patience

SERVERS, SHARE, HITS, MODEL = 4, 0.4, 1300, "nugraph3"
_PERIOD_US = 10_000
"""Short: a server that has used its share of a period stands still until the next."""
_NO_CHECK = ("true",)
"""Docker's health check takes 0.25 s of a core every 15 s: 2% of a core, but 4% of such a share."""
WAITS_S = 60.0
_AWAY = "UNAVAILABLE"


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
            plan = engine.plan()
            assert plan.contained is not None  # Docker's
            contained = plan.contained.model_copy(update={"health": _NO_CHECK})
            plan = plan.model_copy(update={"contained": contained})
            with folder.starting():
                state = engine.launch(plan=plan, say=say)
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


def computed(folder: DeploymentFolder) -> int | None:
    """Return how many events a server has computed; None if it is away."""
    state = folder.require_state()
    if DockerEngine.server(folder, state) is None:
        return None
    try:
        with InferenceServerClient(state.url("grpc").removeprefix("grpc://")) as client:
            statistics = client.get_inference_statistics(MODEL).model_stats
    except InferenceServerException:  # it is killed meanwhile
        return None
    return sum(int(each.inference_count) for each in statistics)


@dataclass(frozen=True, slots=True)
class Seen:
    """What servers have done up to a moment.

    Attributes:
        computed: Events of each server; None: it is away.
        busy_s: For how long each has had requests.
    """

    computed: Sequence[int | None]
    busy_s: Sequence[float]


def rate(before: Seen, after: Seen) -> float:
    """Return the events that a server computes in a second in which it has any; 0 if it has none.

    The mean of the servers that are there before and after.
    """
    events, busy_s = 0, 0.0
    for first, last, since, until in zip(
        before.computed, after.computed, before.busy_s, after.busy_s, strict=True
    ):
        if first is not None and last is not None:
            events, busy_s = events + last - first, busy_s + until - since
    return events / busy_s if busy_s else 0.0


@dataclass(slots=True)
class Found:
    """What jobs got in a while; latencies of answers in seconds, from the event's arrival."""

    seconds: float
    latencies: list[float] = field(default_factory=list)
    lost: int = 0


class Farm:
    """Connections to all servers; each request goes to the one with the fewest under way."""

    def __init__(self, connections: Sequence[Connections]) -> None:
        self._connections = connections
        self._load = [0] * len(connections)
        self._since = [0.0] * len(connections)
        self._away: set[int] = set()
        self._busy_s = [0.0] * len(connections)

    def busy_s(self) -> list[float]:
        """Return for how long each server has had requests."""
        now = time.perf_counter()
        return [
            busy + (now - since if load else 0.0)
            for busy, since, load in zip(self._busy_s, self._since, self._load, strict=True)
        ]

    async def infer(self, request: Request, timeout_s: float) -> bool:
        """Send a request once; return whether it was answered."""
        there = [number for number in range(len(self._load)) if number not in self._away]
        fewest = min(self._load[number] for number in there)
        chosen = random.choice([number for number in there if self._load[number] == fewest])
        if not self._load[chosen]:
            self._since[chosen] = time.perf_counter()
        self._load[chosen] += 1
        try:
            connection = self._connections[chosen]
            answer, status, text = await connection.infer(request.content, timeout_s)
        finally:
            self._load[chosen] -= 1
            if not self._load[chosen]:
                self._busy_s[chosen] += time.perf_counter() - self._since[chosen]
        if answer is None and status not in AGAIN:
            raise LaunchError(f"a server says {status}: {text}")
        if status == _AWAY and not is_busy(text):
            self._away.add(chosen)
        return answer is not None


async def run_jobs(
    farm: Farm, jobs: Jobs, requests: Sequence[Request], settles: float, seconds: float
) -> Found:
    """Let jobs run for a while; count what ends after ``settles``."""
    found, since = Found(seconds - settles), time.perf_counter() + settles
    end = since + seconds - settles

    async def job(number: int) -> None:
        while (now := time.perf_counter()) < end:
            await asyncio.sleep(min(random.expovariate(1 / jobs.own_s), end - now))
            number += 1
            arrived = time.perf_counter()
            if arrived < end:
                answered = await deliver(farm, requests[number % len(requests)], jobs.patience)
                ended = time.perf_counter()
                if since <= ended < end:
                    found.lost += not answered
                    if answered:
                        found.latencies.append(ended - arrived)

    tasks = [asyncio.create_task(job(number)) for number in range(jobs.at_once)]
    await asyncio.gather(*tasks)
    return found


async def deliver(farm: Farm, request: Request, patience: Patience) -> bool:
    """Send an event as often as a job does; return whether it was answered."""
    end = time.perf_counter() + patience.within_s
    for attempt in range(patience.tries):
        if attempt:
            pause = min(patience.pause_s * 2 ** min(attempt - 1, 20), patience.longest_pause_s)
            pause *= random.uniform(0.5, 1.5)
            if time.perf_counter() + pause > end:
                break
            await asyncio.sleep(pause)
        if await farm.infer(request, patience.timeout_s):
            return True
    return False


def simulated_requests(endpoint: Endpoint) -> list[Request]:
    """Return different events of as many hits, as the server at ``endpoint`` wants them."""
    transport = TritonTransport(endpoint, timeout=WAITS_S)
    try:
        model = transport.describe(MODEL)
    finally:
        transport.close()
    generator = np.random.default_rng(HITS)
    events = [simulated_event(model.inputs, HITS, generator) for _ in range(16)]
    return [Request(as_request(model, event), HITS) for event in events]


async def lose(folder: DeploymentFolder, after_s: float) -> None:
    """Kill a server after a while, with all requests in it."""
    await asyncio.sleep(after_s)
    await asyncio.to_thread(_docker, "kill", folder.require_state().container or "")
