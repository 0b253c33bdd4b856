"""What a load test found, as JSON and as the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deploy.client.load.open_loop import Counts, Round

FEWEST = 100
"""Answers that a 99th percentile needs: of fewer it is the longest that happened to be seen."""
COLUMNS = ("offered/s", "clients", "goodput/s", "in time", "p50 ms", "p99 ms", "refused", "late")


def figures(name: str, counts: Counts, seconds: float) -> dict[str, Any]:
    """Return what one tenant got at one rate, as JSON has it.

    ``offered`` and ``goodput`` are events per second: those that arrived, and those answered
    rightly within the deadline while events arrived (what a server still answers after the last one
    says nothing about its load). ``in_time`` counts all that were answered so; ``p50_ms`` and
    ``p99_ms`` are their times from arrival to answer, None without any, or with fewer than
    `FEWEST`. ``statuses`` are those of gRPC of the refused ones; ``reason`` is what was said of
    them most often, empty if nothing was.
    """
    good = counts.latencies
    p50, p99 = (float(ms) for ms in np.percentile(good, (50, 99)) * 1e3) if good else (0.0, 0.0)
    common = counts.reasons.most_common(1)
    return {
        "tenant": name,
        "offered": counts.arrived / seconds,
        "goodput": counts.meanwhile / seconds,
        "arrived": counts.arrived,
        "in_time": len(good),
        "p50_ms": round(p50, 2) if good else None,
        "p99_ms": round(p99, 2) if len(good) >= FEWEST else None,
        "refused": sum(counts.refused.values()),
        "late": counts.late,
        "wrong": counts.wrong,
        "sent": counts.sent,
        "statuses": dict(counts.refused),
        "reason": common[0][0] if common else "",
    }


def row(figure: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a tenant's figures as a row below `COLUMNS`."""
    in_time, arrived = figure["in_time"], figure["arrived"]
    answered = f"{in_time * 100 / arrived:.0f}%" if arrived else "-"
    times = ("-" if ms is None else f"{ms:.0f}" for ms in (figure["p50_ms"], figure["p99_ms"]))
    return (
        f"{figure['offered']:.1f}",
        figure["tenant"],
        f"{figure['goodput']:.1f}",
        answered,
        *times,
        str(figure["refused"]),
        str(figure["late"]),
    )


def document(rounds: Sequence[Round], **facts: Any) -> dict[str, Any]:
    """Return everything as JSON has it."""
    told = [
        {
            "behind_ms": round(each.behind_s * 1e3, 1),
            "tenants": [figures(*tenant, each.seconds) for tenant in each.tenants.items()],
        }
        for each in rounds
    ]
    wrong = sum(counts.wrong for each in rounds for counts in each.tenants.values())
    return {"ok": wrong == 0, **facts, "rounds": told}
