"""What a load test found, as figures, as JSON, and as the rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from deploy.client.load.open_loop import Counts, Round

FEWEST = 100
"""Answers that a 99th percentile needs: of fewer it is the longest that happened to be seen."""
COLUMNS = ("offered/s", "clients", "goodput/s", "in time", "p50 ms", "p99 ms", "refused", "late")


@dataclass(frozen=True, slots=True)
class Figures:
    """What one tenant got at one rate.

    Attributes:
        offered: Events that arrived, per second.
        goodput: Events answered rightly within the deadline, per second, while events arrived:
            what a server still answers after the last one says nothing about its load.
        in_time: Events answered rightly within the deadline.
        p50_ms, p99_ms: Time from arrival to answer, of those; None: there were none, or fewer than
            `FEWEST`.
        refused, late, wrong: Events.
        statuses: The status of gRPC of the refused ones.
        reason: What was said most often; empty: nothing.
    """

    tenant: str
    offered: float
    goodput: float
    arrived: int
    in_time: int
    p50_ms: float | None
    p99_ms: float | None
    refused: int
    late: int
    wrong: int
    sent: int
    statuses: dict[str, int]
    reason: str


def figures(name: str, counts: Counts, seconds: float) -> Figures:
    good = counts.latencies
    p50, p99 = (float(ms) for ms in np.percentile(good, (50, 99)) * 1e3) if good else (0.0, 0.0)
    common = counts.reasons.most_common(1)
    return Figures(
        tenant=name,
        offered=counts.arrived / seconds,
        goodput=counts.meanwhile / seconds,
        arrived=counts.arrived,
        in_time=len(good),
        p50_ms=round(p50, 2) if good else None,
        p99_ms=round(p99, 2) if len(good) >= FEWEST else None,
        refused=sum(counts.refused.values()),
        late=counts.late,
        wrong=counts.wrong,
        sent=counts.sent,
        statuses=dict(counts.refused),
        reason=common[0][0] if common else "",
    )


def all_figures(rounds: Sequence[Round]) -> list[list[Figures]]:
    """Return the figures of each round, a tenant each."""
    return [
        [figures(name, counts, each.seconds) for name, counts in each.tenants.items()]
        for each in rounds
    ]


def row(figure: Figures) -> tuple[str, ...]:
    """Return the figures as a row below `COLUMNS`."""
    answered = f"{figure.in_time * 100 / figure.arrived:.0f}%" if figure.arrived else "-"
    times = ("-" if ms is None else f"{ms:.0f}" for ms in (figure.p50_ms, figure.p99_ms))
    return (
        f"{figure.offered:.1f}",
        figure.tenant,
        f"{figure.goodput:.1f}",
        answered,
        *times,
        str(figure.refused),
        str(figure.late),
    )


def document(rounds: Sequence[Round], **facts: Any) -> dict[str, Any]:
    """Return everything as JSON has it."""
    told = [
        {
            "behind_ms": round(each.behind_s * 1e3, 1),
            "tenants": [asdict(figure) for figure in found],
        }
        for each, found in zip(rounds, all_figures(rounds), strict=True)
    ]
    wrong = sum(counts.wrong for each in rounds for counts in each.tenants.values())
    return {"ok": wrong == 0, **facts, "rounds": told}
