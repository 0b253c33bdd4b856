"""How many servers a campaign needs, and how many jobs may run at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from deploy.host.errors import KitError
from scripts.campaign.farm import Campaign, Jobs, Patience, Servers
from scripts.campaign.simulation import simulate

_EVENTS = 60_000
"""About as many are simulated: of a large farm a part, with fewer servers or fewer cores in each,
and its share of the jobs."""
_FEWEST = 10_000
"""Not fewer: a rate of few events is that of chance, and so is their 99th percentile."""
_HALVINGS = 5


@dataclass(frozen=True, slots=True)
class Wish:
    """So many events within a time, by jobs that need a time of their own for each event."""

    events: float
    within_s: float
    own_s: float
    patience: Patience

    @property
    def per_s(self) -> float:
        return self.events / self.within_s


@dataclass(frozen=True, slots=True)
class Steady:
    """What a farm does for so many jobs, for as long as they run.

    Attributes:
        lost: The part of the events that was not answered.
        in_vain: The part of the computed events that came too late for their clients.
        p50_s, p99_s: From an event's arrival in its job to its answer; None: there was none.
    """

    servers: int
    jobs: int
    per_s: float
    lost: float
    in_vain: float
    p50_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The fewest servers, and from how many to how many jobs lose no event and are in time."""

    servers: int
    fewest_jobs: int
    most_jobs: int


def steady(servers: Servers, jobs: int, wish: Wish) -> Steady:
    """Simulate so many jobs, until the farm does what it will go on doing."""
    patience = wish.patience
    a_try = min(patience.timeout_s, servers.wait_s or math.inf)
    longest = min(patience.tries * (a_try + patience.longest_pause_s), 2 * patience.timeout_s)
    rate = min(servers.capacity, jobs / wish.own_s if wish.own_s else math.inf)
    settles, seconds = 2 * wish.own_s + longest, max(3 * wish.own_s + longest, _FEWEST / rate)
    parts = max(1.0, min(rate * (settles + seconds) / _EVENTS, jobs))
    count = math.ceil(servers.count / parts)
    cores = math.ceil(servers.cores / max(1.0, parts / servers.count))
    waiting = servers.waiting and math.ceil(servers.waiting * cores / servers.cores)
    instances = servers.instances and math.ceil(servers.instances * cores / servers.cores)
    part = replace(servers, count=count, cores=cores, waiting=waiting, instances=instances)
    share = part.capacity / servers.capacity
    running = Jobs(10**9, max(1, round(jobs * share)), 10**9, wish.own_s, patience)
    found = simulate(Campaign(part, running, until_s=settles + seconds))
    answered, lost, in_vain = (
        sum(at >= settles for at in ends)
        for ends in (found.answered_at, found.failed_at, found.in_vain_at)
    )
    return Steady(
        servers=servers.count,
        jobs=jobs,
        per_s=found.per_s(settles) / share,
        lost=lost / max(lost + answered, 1),
        in_vain=in_vain / max(in_vain + answered, 1),
        p50_s=found.latency(0.5, settles) if answered else None,
        p99_s=found.latency(0.99, settles) if answered else None,
    )


def plan(one: Servers, wish: Wish) -> Plan:
    """Return the fewest servers like ``one`` that are enough, and the jobs to run at once.

    Raises:
        KitError: Events are lost however many servers there are.
    """
    lone = Jobs(1, 1, _EVENTS, 0.0, replace(wish.patience, ends_job=False))
    if simulate(Campaign(replace(one, count=2), lone)).failed:
        cause = f"an event takes {one.service_s:.3g} s on a free core, and some take too long for "
        cause += f"a timeout of {wish.patience.timeout_s:g} s: more servers do not help"
        raise KitError(cause, "a longer --timeout, or more --tries")
    count = max(1, math.ceil(wish.per_s / replace(one, count=1).capacity))
    while (fewest := _fewest_jobs(replace(one, count=count), wish)) is None:
        count += max(1, count // 20)
    servers = replace(one, count=count)
    most, too_many = fewest, servers.capacity * (wish.own_s + 2 * wish.patience.timeout_s)
    for _ in range(_HALVINGS):
        between = round(math.sqrt(most * max(too_many, most)))
        if steady(servers, between, wish).lost:
            too_many = between
        else:
            most = between
    return Plan(count, fewest, most)


def _fewest_jobs(servers: Servers, wish: Wish) -> int | None:
    """Return how many jobs reach the rate without losing an event; None: no number does."""
    jobs = math.ceil(1.02 * wish.per_s * (wish.own_s + servers.service_s))
    for _ in range(8):
        found = steady(servers, jobs, wish)
        if found.lost:
            return None
        if found.per_s >= wish.per_s:
            return jobs
        jobs = math.ceil(jobs * 1.05)
    return None
