"""A discrete-event simulation of a campaign: every request, queue and retry, but no network."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Literal

from scripts.campaign.farm import Campaign, Scaling
from scripts.campaign.outcome import Outcome

End = Literal["refused", "late"]
_SAMPLES = 400


@dataclass(slots=True, eq=False)
class _Job:
    left: int
    arrived: float = 0.0
    tries: int = 0


@dataclass(slots=True, eq=False)
class _Request:
    """A try. ``given_up``: its client no longer waits. ``gone``: it is not in the queue.

    ``ends`` is the server's progress at which it is computed.
    """

    job: _Job
    server: _Server
    sent: float
    ends: float = 0.0
    given_up: bool = False
    gone: bool = False


@dataclass(slots=True, eq=False)
class _Server:
    """``progress``: seconds of a core that each event computed so far had, up to ``at``."""

    queue: deque[_Request] = field(default_factory=deque)
    waiting: int = 0
    served: list[_Request] = field(default_factory=list)
    progress: float = 0.0
    at: float = 0.0
    changes: int = 0
    alive: bool = True
    drains: bool = False

    @property
    def load(self) -> int:
        return self.waiting + len(self.served)


def simulate(campaign: Campaign, seed: int = 1) -> Outcome:
    """Return what becomes of a campaign; the same for the same seed."""
    return _Simulation(campaign, seed).run()


class _Simulation:
    def __init__(self, campaign: Campaign, seed: int) -> None:
        self._campaign, self._random = campaign, Random(seed)
        times = campaign.servers.times
        self._times = [each * len(times) / sum(times) for each in times]
        self._now, self._number, self._pace = 0.0, 0, 1.0
        self._coming: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._servers = [_Server() for _ in range(campaign.servers.count)]
        self._to_start, self._running = campaign.jobs.total, 0
        self._open = 0  # events that have arrived, without an end
        self._starting = 0
        self._waits: list[float] = []
        self._wanted: list[tuple[float, int]] = []
        self._outcome = Outcome()

    def run(self) -> Outcome:
        campaign, outcome = self._campaign, self._outcome
        for _ in range(campaign.jobs.at_once):
            self._next_job()
        for number, pace in enumerate((*campaign.servers.paces, 1.0)):
            self._at(number * campaign.servers.pace_s, self._go_at, pace)
        for loss in campaign.losses:
            self._at(loss.at_s, self._lose, loss.count, loss.back_s)
        if campaign.scaling is not None:
            self._at(campaign.scaling.every_s, self._scale, campaign.scaling)
        every, look = 1.0, 0.0
        while self._running and self._coming and self._coming[0][0] <= campaign.until_s:
            self._now, _, action, arguments = heappop(self._coming)
            if self._now >= look:
                self._sample()
                if len(outcome.times) > _SAMPLES:  # half as many, twice as far apart
                    for series in (outcome.times, outcome.waiting, outcome.servers):
                        del series[1::2]
                    every *= 2
                look = self._now + every
            action(*arguments)
        self._sample()
        outcome.seconds = campaign.until_s if self._running else self._now
        outcome.under_way = self._open
        return outcome

    def _sample(self) -> None:
        alive = [server for server in self._servers if server.alive]
        self._outcome.times.append(self._now)
        self._outcome.waiting.append(sum(server.waiting for server in alive))
        self._outcome.servers.append(len(alive))

    def _at(self, time: float, action: Callable[..., None], *arguments: object) -> None:
        self._number += 1  # of two at the same time, the one that was planned first
        heappush(self._coming, (time, self._number, action, arguments))

    # A job, event by event.

    def _next_job(self) -> None:
        if self._to_start:
            self._to_start -= 1
            self._running += 1
            self._next_event(_Job(self._campaign.jobs.events))

    def _next_event(self, job: _Job) -> None:
        own = self._campaign.jobs.own_s
        wait = self._random.expovariate(1 / own) if own else 0.0
        self._at(self._now + wait, self._arrive, job)

    def _arrive(self, job: _Job) -> None:
        job.left -= 1
        job.arrived, job.tries = self._now, 0
        self._outcome.arrived += 1
        self._open += 1
        self._send(job)

    def _send(self, job: _Job) -> None:
        job.tries += 1
        self._outcome.sent += 1
        server = self._choose()
        servers, most = self._campaign.servers, self._campaign.servers.waiting
        free = server is not None and len(server.served) < servers.at_once
        if server is None or (most is not None and server.waiting >= most and not free):
            self._again(job, "refused")
            return
        request = _Request(job, server, self._now)
        server.queue.append(request)
        server.waiting += 1
        self._serve(server)
        if not request.gone:
            waiting = sum(each.waiting for each in self._servers)
            self._outcome.most_waiting = max(self._outcome.most_waiting, waiting)
        timeout = self._campaign.jobs.patience.timeout_s
        if servers.wait_s is not None and not request.gone:
            self._at(self._now + servers.wait_s, self._expire, request)
        if timeout < math.inf:
            self._at(self._now + timeout, self._give_up, request)

    def _choose(self) -> _Server | None:
        there = [server for server in self._servers if server.alive and not server.drains]
        if not there:
            return None
        if self._campaign.servers.balance == "random":
            return self._random.choice(there)
        fewest = min(server.load for server in there)
        return self._random.choice([server for server in there if server.load == fewest])

    def _answered(self, job: _Job) -> None:
        self._outcome.latencies.append(self._now - job.arrived)
        self._outcome.answered_at.append(self._now)
        self._open -= 1
        self._go_on(job, failed=False)

    def _again(self, job: _Job, end: End) -> None:
        """Send an event once more, or leave it without an answer."""
        patience, outcome = self._campaign.jobs.patience, self._outcome
        if job.tries < patience.tries:
            pause = min(patience.pause_s * 2 ** min(job.tries - 1, 20), patience.longest_pause_s)
            again = self._now + pause * self._random.uniform(0.5, 1.5)
            if again <= job.arrived + patience.within_s:
                self._at(again, self._send, job)
                return
        self._open -= 1
        outcome.failed_at.append(self._now)
        if end == "refused":
            outcome.refused += 1
        else:
            outcome.late += 1
        self._go_on(job, failed=patience.ends_job)

    def _go_on(self, job: _Job, *, failed: bool) -> None:
        if job.left and not failed:
            self._next_event(job)
            return
        self._outcome.unsent += job.left
        self._outcome.jobs_failed += failed
        self._outcome.jobs_done += not failed
        self._running -= 1
        self._next_job()

    # A server, request by request.

    def _serve(self, server: _Server, *, changed: bool = False) -> None:
        servers = self._campaign.servers
        while server.queue and len(server.served) < servers.at_once:
            request = server.queue.popleft()
            if request.gone:
                continue
            self._advance(server)
            request.gone = changed = True
            server.waiting -= 1
            request.ends = server.progress + self._service()
            server.served.append(request)
            self._note_wait(request)
        if changed:
            self._plan(server)

    def _speed(self, server: _Server) -> float:
        """Return the part of a core that each event has, at the pace of the time."""
        return self._pace * min(1.0, self._campaign.servers.cores / max(len(server.served), 1))

    def _go_at(self, pace: float) -> None:
        for server in self._servers:
            self._advance(server)
        self._pace = pace
        for server in self._servers:
            self._plan(server)

    def _advance(self, server: _Server) -> None:
        server.progress += (self._now - server.at) * self._speed(server)
        server.at = self._now

    def _plan(self, server: _Server) -> None:
        """Plan the end of the event that is computed first, unless others come or go before."""
        server.changes += 1
        if server.served:
            first = min(server.served, key=lambda request: request.ends)
            left = max(first.ends - server.progress, 0.0) / self._speed(server)
            self._at(self._now + left, self._finish, first, server.changes)

    def _service(self) -> float:
        mean, spread = self._campaign.servers.service_s, self._campaign.servers.spread
        if self._times:
            return mean * self._random.choice(self._times)
        if not spread:
            return mean
        return self._random.gammavariate(spread**-2, mean * spread**2)

    def _finish(self, request: _Request, change: int) -> None:
        server = request.server
        if change != server.changes:
            return
        self._advance(server)
        server.served.remove(request)
        if request.given_up:
            self._outcome.in_vain_at.append(self._now)
        else:
            request.given_up = True  # its timeout says nothing any more
            self._answered(request.job)
        self._serve(server, changed=True)
        if server.drains and not server.load:
            self._servers.remove(server)

    def _expire(self, request: _Request) -> None:
        if not request.gone:
            self._leave(request)
            if not request.given_up:
                request.given_up = True
                self._again(request.job, "refused")

    def _give_up(self, request: _Request) -> None:
        if request.given_up:
            return
        request.given_up = True
        if not request.gone and self._campaign.servers.notice:
            self._leave(request)
        self._again(request.job, "late")

    def _leave(self, request: _Request) -> None:
        request.gone = True
        request.server.waiting -= 1
        self._note_wait(request)

    def _note_wait(self, request: _Request) -> None:
        if self._campaign.scaling is not None:
            self._waits.append(self._now - request.sent)

    # The farm.

    def _lose(self, count: int, back_s: float | None) -> None:
        for server in [server for server in self._servers if server.alive][:count]:
            server.alive = False
            self._servers.remove(server)
            lost = [*server.served, *(each for each in server.queue if not each.gone)]
            server.served.clear()
            server.changes += 1
            server.queue.clear()
            server.waiting = 0
            for request in lost:
                request.gone = True
                if not request.given_up:
                    request.given_up = True
                    self._again(request.job, "refused")
            if back_s is not None:
                self._at(self._now + back_s, self._add)

    def _add(self) -> None:
        self._servers.append(_Server())

    def _start(self) -> None:
        self._starting -= 1
        self._add()

    def _scale(self, scaling: Scaling) -> None:
        serving = [server for server in self._servers if not server.drains]
        waits, self._waits = self._waits, []
        waiting = sum(server.waiting for server in serving)
        # A queue that is never empty: what is in it, by how much leaves it.
        queue_s = waiting * scaling.every_s / max(len(waits), 1)
        if waits and waiting <= len(waits):
            queue_s = max(queue_s, sum(waits) / len(waits))
        have = max(len(serving), 1)
        wanted = math.ceil(have * min(queue_s / scaling.target_s, 2.0) - 0.1)
        wanted = min(max(wanted, self._campaign.servers.count), scaling.most)
        self._wanted.append((self._now, wanted))
        self._wanted = [each for each in self._wanted if each[0] > self._now - scaling.settle_s]
        for _ in range(wanted - len(serving) - self._starting):
            self._starting += 1
            self._at(self._now + scaling.start_s, self._start)
        settled = self._now >= scaling.settle_s
        enough = max(number for _, number in self._wanted)
        for server in serving[enough:] if settled else ():
            server.drains = True
            if not server.load:
                self._servers.remove(server)
        self._at(self._now + scaling.every_s, self._scale, scaling)
