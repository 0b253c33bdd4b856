"""Sends events when they arrive, whether or not earlier ones were answered, and keeps count."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from deploy.client.load.connection import AGAIN, LATE, Connections, Request, is_same
from deploy.client.load.traffic import Patience, Tenant, arrivals


@dataclass(slots=True)
class Counts:
    """What became of a tenant's events.

    Attributes:
        latencies: Seconds from arrival to right answer, of those in time.
        meanwhile: How many of those were answered while events still arrived.
        late: Answered rightly, but after the deadline counted from the arrival, or not at all
            before the last try's.
        refused: Refused by the server at the last try, by the status of gRPC.
        reasons: What servers said of refused requests, and how often.
        sent: Requests, with those sent again.
    """

    arrived: int = 0
    sent: int = 0
    late: int = 0
    wrong: int = 0
    meanwhile: int = 0
    latencies: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Round:
    """One rate, tried for a while.

    Attributes:
        behind_s: By how much the generator was late, at the 99th percentile of all arrivals.
    """

    seconds: float
    tenants: Mapping[str, Counts]
    behind_s: float


async def offer(
    server: Connections,
    traffic: Sequence[tuple[Tenant, Sequence[Request]]],
    patience: Patience,
    *,
    seconds: float,
    seed: int,
) -> Round:
    """Let events arrive for a while; return when each was answered or given up."""
    random = np.random.default_rng(seed)
    counts = {tenant.name: Counts() for tenant, _ in traffic}
    schedule = sorted(
        (
            (float(at), tenant.name, requests[number % len(requests)])
            for tenant, requests in traffic
            for number, at in enumerate(arrivals(tenant.rate, seconds, random))
        ),
        key=lambda each: each[0],
    )
    pending: set[asyncio.Task[None]] = set()
    behind = []
    begun = time.perf_counter()
    end = begun + seconds
    for at, name, request in schedule:
        wait = begun + at - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        behind.append(max(time.perf_counter() - begun - at, 0.0))
        task = asyncio.create_task(
            deliver(server, request, patience, counts[name], begun + at, end)
        )
        pending.add(task)
        task.add_done_callback(pending.discard)
    await asyncio.gather(*pending)
    late = float(np.percentile(behind, 99)) if behind else 0.0
    return Round(seconds, counts, late)


async def deliver(
    server: Connections,
    request: Request,
    patience: Patience,
    counts: Counts,
    arrived: float,
    end: float,
) -> None:
    """Send an event, again if it is refused; count what became of it.

    Args:
        arrived: When the event did, on the clock of ``time.perf_counter``.
        end: When the last one will.
    """
    counts.arrived += 1
    for attempt in range(patience.retries + 1):
        if attempt and patience.pause_s:
            await asyncio.sleep(patience.pause_s)
        counts.sent += 1
        answer, status, text = await server.infer(request.content, patience.deadline_s)
        if answer is not None:
            now = time.perf_counter()
            taken = now - arrived
            if not is_same(answer, request.answer):
                counts.wrong += 1
            elif taken > patience.deadline_s:
                counts.late += 1
            else:
                counts.latencies.append(taken)
                counts.meanwhile += now <= end
            return
        if status != LATE:
            counts.reasons[text] += 1
        if status not in AGAIN:
            break
    if status == LATE:
        counts.late += 1
    else:
        counts.refused[status] += 1


async def capacity(
    server: Connections, requests: Sequence[Request], *, clients: int, seconds: float
) -> float:
    """Return the events per second that clients get who send the next when they have an answer."""
    answered = 0
    begun = time.perf_counter()
    end = begun + seconds

    async def client(step: int) -> None:
        nonlocal answered
        while time.perf_counter() < end:
            answer, _, _ = await server.infer(requests[step % len(requests)].content, 60.0)
            answered += answer is not None
            step += 1

    await asyncio.gather(*(client(number) for number in range(clients)))
    return answered / (time.perf_counter() - begun)
