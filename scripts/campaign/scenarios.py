"""The campaigns that docs/campaign.md tells of: one that failed, what mends it, and accidents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from scripts.campaign.farm import Campaign, Jobs, Loss, Patience, Scaling, Servers
from scripts.campaign.measured import core_seconds
from scripts.campaign.outcome import Outcome
from scripts.campaign.simulation import simulate

HITS = 1300
_AS_IT_WAS = Servers(2, 1, 0.16, spread=0.1, notice=False, balance="random")
_JOBS = Jobs(10_000, 800, 20, own_s=10.0, patience=Patience(60.0, tries=2))
_BALANCED = replace(_AS_IT_WAS, balance="fewest")
_BOUNDED = replace(_BALANCED, notice=True, waiting=64, wait_s=1.0)

FAILURE: Mapping[str, Campaign] = {
    "as it was": Campaign(_AS_IT_WAS, _JOBS),
    "ten tries": Campaign(_AS_IT_WAS, replace(_JOBS, patience=Patience(60.0, tries=10))),
    "500 jobs at once": Campaign(_AS_IT_WAS, replace(_JOBS, at_once=500)),
    "timeout of 180 s": Campaign(_AS_IT_WAS, replace(_JOBS, patience=Patience(180.0, tries=2))),
    "balanced by load": Campaign(_BALANCED, _JOBS),
    "balanced by load, a third server": Campaign(replace(_BALANCED, count=3), _JOBS),
    "bounded queues": Campaign(_BOUNDED, _JOBS),
    "bounded queues, numlkit infer --timeout 600": Campaign(
        _BOUNDED, replace(_JOBS, patience=Patience.kit(600.0))
    ),
}
"""The same 10,000 jobs, with one thing changed, or with what goes together."""

_CORES, _UNTIL_S, _LOST_S = 2, 1200.0, 300.0
_ACCIDENT_JOBS = Jobs(10**9, 4_000, 100, own_s=10.0, patience=Patience.kit())


def accidents() -> Mapping[str, Campaign]:
    """Return what happens to a farm of four servers, of as many cores as were measured."""
    farm = Servers.kit(4, _CORES, core_seconds("nugraph3", HITS))
    calm = Campaign(farm, _ACCIDENT_JOBS, until_s=_UNTIL_S)
    scaled = replace(calm, servers=replace(farm, count=2), scaling=Scaling(most=8))
    return {
        "nothing happens": calm,
        "one of four is lost for 5 min": replace(calm, losses=(Loss(_LOST_S, 1, 300.0),)),
        "two of four are lost for 5 min": replace(calm, losses=(Loss(_LOST_S, 2, 300.0),)),
        "two are there, more are started": scaled,
    }


@dataclass(frozen=True, slots=True)
class Told:
    """A campaign in figures; ``at_s``, ``per_s`` and ``farm`` are its course."""

    jobs_done: float
    answered: float
    in_vain: float
    hours: float
    per_s_mean: float
    p50_s: float
    p99_s: float
    most_waiting: int
    most_servers: int
    at_s: list[float]
    per_s: list[float]
    farm: list[float]


def told(outcome: Outcome, bins: int = 60) -> Told:
    jobs = outcome.jobs_done + outcome.jobs_failed
    # Events of jobs that were not started are no one's; those under way have no end yet.
    events = outcome.answered + outcome.failed
    at, per_s = outcome.rate(bins)
    servers = np.interp(at, outcome.times, outcome.servers)
    return Told(
        jobs_done=round(outcome.jobs_done / max(jobs, 1), 4),
        answered=round(outcome.answered / max(events, 1), 4),
        in_vain=round(outcome.in_vain / max(outcome.in_vain + outcome.answered, 1), 4),
        hours=round(outcome.seconds / 3600, 2),
        per_s_mean=round(outcome.answered / outcome.seconds, 1),
        p50_s=round(outcome.latency(0.5), 3),
        p99_s=round(outcome.latency(0.99), 3),
        most_waiting=outcome.most_waiting,
        most_servers=max(outcome.servers),
        at_s=[round(float(each), 1) for each in at],
        per_s=[round(float(each), 1) for each in per_s],
        farm=[math.ceil(each) for each in servers],
    )


def run_all() -> dict[str, dict[str, dict[str, object]]]:
    """Simulate all of them, in about three minutes; return them as JSON can hold them."""
    campaigns = {"failure": FAILURE, "accidents": accidents()}
    return {
        kind: {name: asdict(told(simulate(campaign))) for name, campaign in each.items()}
        for kind, each in campaigns.items()
    }
