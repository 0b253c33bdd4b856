"""What a campaign is made of: servers, the jobs that ask them, and what happens meanwhile."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from deploy.deployment.limits import Limits

_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Servers:
    """Equal servers behind a front door, or clients that balance.

    Attributes:
        cores: Of one server; 1 for a GPU or a share of a core.
        service_s: What an event takes on a core of its own, on average.
        spread: Standard deviation of that time, as a part of its mean; 0: all take as long.
        waiting: The most requests that wait in one server; None: any number.
        wait_s: The longest that a request waits; None: any time.
        notice: Whether a server hears that a client has given up, and drops its request. Over gRPC
            it does; over HTTP, or behind a front door that goes on by itself, it does not.
        instances: Events that one computes at a time: they share its cores. None: one for each.
        balance: ``fewest``: to the server with the fewest requests; ``random``: to any.
        times: Times that were measured, in any unit, instead of ``spread``: each event takes one of
            them, by chance, scaled to ``service_s`` on average.
        paces: How fast servers are in one part of the time after the other, each of ``pace_s``, as
            a multiple of their mean; afterwards 1. A shared host is not always as fast.
        pace_s: Of one part.
    """

    count: int
    cores: int
    service_s: float
    spread: float = 0.5
    waiting: int | None = None
    wait_s: float | None = None
    notice: bool = True
    instances: int | None = None
    balance: Literal["fewest", "random"] = "fewest"
    times: tuple[float, ...] = ()
    paces: tuple[float, ...] = ()
    pace_s: float = 1.0

    @property
    def capacity(self) -> float:
        """Events per second that all of them can compute."""
        return self.count * self.cores / self.service_s

    @property
    def at_once(self) -> int:
        """Events that one computes at a time."""
        return self.cores if self.instances is None else self.instances

    @staticmethod
    def kit(count: int, cores: int, service_s: float, spread: float = 0.5) -> Servers:
        """Return servers with the kit's instances and default bounds."""
        instances = _LIMITS.instances(cores)
        waiting = _LIMITS.most_waiting(gpu=False) * instances
        return Servers(
            count, cores, service_s, spread, waiting, _LIMITS.wait_s, instances=instances
        )


@dataclass(frozen=True, slots=True)
class Patience:
    """What a job does about a request that is refused or not answered.

    Attributes:
        timeout_s: How long it waits for an answer.
        tries: How often it sends an event, at most.
        pause_s: How long it waits before it sends an event again; twice as long each time, up to
            ``longest_pause_s``, and half as long to half as long again at random.
        within_s: How long after an event's arrival it sends it again.
        ends_job: Whether an event without an answer ends the job, as in LArSoft.
    """

    timeout_s: float = 60.0
    tries: int = 3
    pause_s: float = 0.0
    longest_pause_s: float = 1.0
    within_s: float = math.inf
    ends_job: bool = True

    @staticmethod
    def kit(timeout_s: float = 60.0) -> Patience:
        """Return what ``numlkit infer`` does: a busy server is asked again until the timeout."""
        return Patience(timeout_s, 10**9, pause_s=0.05, within_s=timeout_s, ends_job=False)


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs of a batch farm; when one ends the next starts.

    Attributes:
        total: Jobs of the campaign.
        at_once: Those that run at the same time.
        events: Events of each job, one after the other.
        own_s: What a job does by itself before each event, on average; exponentially distributed.
    """

    total: int
    at_once: int
    events: int
    own_s: float
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True, slots=True)
class Loss:
    """Servers that die at a time, with all requests in them; after ``back_s`` they are back."""

    at_s: float
    count: int = 1
    back_s: float | None = None


@dataclass(frozen=True, slots=True)
class Scaling:
    """Servers are added and removed by the time that requests wait, as Kubernetes does it.

    Attributes:
        most: Servers, at most; the fewest are those that the campaign starts with.
        target_s: The time that requests may wait, on average.
        every_s: How often it is looked at.
        start_s: What a new server takes until it answers.
        settle_s: For how long fewer must have been enough before servers are removed.
    """

    most: int
    target_s: float = 0.1
    every_s: float = 15.0
    start_s: float = 30.0
    settle_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Campaign:
    """What is simulated; it ends with the last job, or at ``until_s``."""

    servers: Servers
    jobs: Jobs
    losses: tuple[Loss, ...] = ()
    scaling: Scaling | None = None
    until_s: float = float("inf")
