"""What became of a campaign: its events, when they were answered, and the state of its farm."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Outcome:
    """What became of a campaign.

    Each event that arrived was answered, refused (by every server asked), late (its last try was
    not answered in time), or was under way at the end. Events of jobs that had ended before they
    came to them are unsent.

    Attributes:
        latencies: Seconds from arrival to answer, in the order of the answers.
        answered_at: When these answers came; ``failed_at``: when events were refused or late.
        in_vain_at: When events were computed for clients that had given up.
        most_waiting: Requests that waited at the same time.
        jobs_done: Jobs that ended without losing an event; ``jobs_failed``: the others.
        times, waiting, servers: The state of the farm at regular times.
    """

    seconds: float = 0.0
    arrived: int = 0
    sent: int = 0
    refused: int = 0
    late: int = 0
    under_way: int = 0
    unsent: int = 0
    most_waiting: int = 0
    jobs_done: int = 0
    jobs_failed: int = 0
    latencies: list[float] = field(default_factory=list)
    answered_at: list[float] = field(default_factory=list)
    failed_at: list[float] = field(default_factory=list)
    in_vain_at: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    servers: list[int] = field(default_factory=list)

    @property
    def answered(self) -> int:
        return len(self.latencies)

    @property
    def in_vain(self) -> int:
        return len(self.in_vain_at)

    @property
    def failed(self) -> int:
        """Events that were not answered, with those that were never sent."""
        return self.refused + self.late + self.unsent

    def per_s(self, since: float = 0.0) -> float:
        """Return the events answered per second from a time on."""
        span = self.seconds - since
        return sum(at >= since for at in self.answered_at) / span if span > 0 else 0.0

    def latency(self, quantile: float, since: float = 0.0) -> float:
        """Return a quantile of the latencies of answers from a time on; NaN: there were none."""
        found = np.array(self.latencies)[np.array(self.answered_at) >= since]
        return float(np.quantile(found, quantile)) if found.size else math.nan

    def rate(self, bins: int = 100) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return times, and the events answered per second around them."""
        counts, edges = np.histogram(self.answered_at, bins, (0.0, self.seconds or 1.0))
        return (edges[:-1] + edges[1:]) / 2, counts / np.diff(edges)
