"""A stored run of a load test as a section of docs/load.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deploy.client.load.summary import FEWEST
from scripts.benchmarks.document import Document
from scripts.benchmarks.load import (
    CLOSED,
    HEAVY,
    KINDS,
    LIGHT,
    LIGHT_RATE,
    ORDINARY,
    OVERLOADED,
    PATIENCE,
    RATES,
)


def section(run: Document) -> str:
    """Return the section, with its tables."""
    return "\n".join([*_overload(run), "", *_beside(run), "", *_closed(run)]) + "\n"


def goodput(run: Document, kind: str) -> list[float]:
    """Return the events answered in time, at each rate, as multiples of the capacity."""
    rounds = run["overload"][kind]["rounds"]
    return [each["tenants"][0]["goodput"] / run["capacity"] for each in rounds]


def _overload(run: Document) -> Iterator[str]:
    deadline, tries = PATIENCE.deadline_s, PATIENCE.retries + 1
    capacity, load = run["capacity"], run["machine"]["load_before"][0]
    yield from (
        f"Clients have a deadline of {deadline:g} s and try {tries} times, without a pause.",
        f"An answer counts if it is right, comes within {deadline:g} s of the event's arrival, and",
        "while events still arrive.",
        f"Events have {ORDINARY:,} hits. Each server has one core; clients and door have another.",
        f"Goodput is in multiples of what a server can answer: {capacity:.0f} events/s. (Load",
        f"average before the run: {load:.1f}. Medians of three rounds, in turn.)",
        "",
    )
    yield "| offered | " + " | ".join(f"{rate:g}x" for rate in RATES) + " |"
    yield "|---|" + "---|" * len(RATES)
    for kind in OVERLOADED:
        yield f"| {kind} | " + " | ".join(f"{good:.2f}" for good in goodput(run, kind)) + " |"
    yield ""
    yield "![Goodput against offered load](../scripts/data/speed/load.png)"


def _beside(run: Document) -> Iterator[str]:
    yield f"A client that sends {LIGHT_RATE} events of {LIGHT} hits a second, for 10 s. A p99 is"
    yield f"that of the answers in time, if there are {FEWEST} of them:"
    yield ""
    yield "| beside | | answered in time | p99 | of the large ones |"
    yield "|---|---|---|---|---|"
    for hits, rate in HEAVY.items():
        for kind in KINDS:
            light, heavy = run["beside"][str(hits)][kind]
            p99 = f"{light['p99_ms']:.0f} ms" if light["in_time"] >= FEWEST else "-"
            yield (
                f"| {rate * 10:.0f} events of {hits:,} hits | {kind} | {_share(light)} | {p99} | "
                f"{_share(heavy)} |"
            )
    yield ""
    memory = ", ".join(
        f"{run['most_mb'][kind]:,} MB {kind} ({run['first_mb'][kind]:,} MB idle)" for kind in KINDS
    )
    yield f"Most memory during all of this: {memory}."
    yield "No process died." if all(run["stubs_kept"].values()) else "Processes died."


def _closed(run: Document) -> Iterator[str]:
    yield "Rates for clients that send the next event only after an answer. In brackets: the rate"
    yield "of the bounded server divided by this one, both measured within the same half second."
    yield ""
    yield "| hits | clients | " + " | ".join(CLOSED) + " |"
    yield "|---|---|" + "---|" * len(CLOSED)
    for each in run["closed"]:
        rates = (
            f"{each['per_s'][kind]:.0f} events/s"
            + (f" ({each['ratios'][kind]:.2f})" if kind in each["ratios"] else "")
            for kind in CLOSED
        )
        yield f"| {each['hits']:,} | {each['clients']} | " + " | ".join(rates) + " |"


def _share(figures: dict[str, Any]) -> str:
    arrived = figures["arrived"]
    return f"{100 * figures['in_time'] / arrived:.0f}%" if arrived else "-"
