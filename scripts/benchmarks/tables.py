"""A run as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deploy.client.load.summary import FEWEST
from scripts.benchmarks.cells import STAGES, TITLES
from scripts.benchmarks.document import REFERENCES, Document, find


@dataclass(frozen=True, slots=True)
class Table:
    """A table, and lines below it."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = ()


def ms(seconds: float) -> str:
    """Return milliseconds with three significant digits."""
    value = 1e3 * seconds
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def times(ratio: Document | None) -> str:
    """Return a ratio and its spread, as in ``3.1x (2.9 to 3.3)``."""
    if ratio is None:
        return "-"
    return f"{ratio['median']:.1f}x ({ratio['low']:.1f} to {ratio['high']:.1f})"


def _p99(seconds: Document, of: int) -> str:
    return ms(seconds["p99"]) if of >= FEWEST else "-"


def tables(run: Document) -> Iterator[Table]:
    """Yield a run's tables, by model and set of events."""
    for model, network in run["models"].items():
        for events, facts in run["sets"].items():
            title = (
                f"{model} ({network}), {events}: {facts['events']} events of about "
                f"{facts['hits']:.0f} hits and {facts['spacepoints']:.0f} spacepoints"
            )
            for table in (_in_process(run, model, events), _served(run, model, events)):
                if table.rows:
                    named = f"{title}; {table.title}"
                    yield Table(named, table.columns, table.rows, table.notes)


def _in_process(run: Document, model: str, events: str) -> Table:
    columns = (
        "in one process",
        "graph ms",
        "network ms",
        "event ms",
        "CPU ms",
        "p99 ms",
        "events/s",
    )
    rows, notes = [], []
    for entry in run["in_process"]:
        if (entry["model"], entry["events"]) != (model, events):
            continue
        rows.append(
            (
                entry["path"],
                *(ms(entry[stage]["p50"]) for stage in STAGES),
                _p99(entry["event"], entry["rounds"] * run["sets"][events]["events"]),
                f"{entry['events_per_second']['median']:.1f}",
            )
        )
        for against in REFERENCES:
            ratios = find(
                run["in_process_ratios"],
                model=model,
                events=events,
                of=entry["path"],
                against=against,
            )
            if ratios is not None:
                parts = ", ".join(f"{stage} {times(ratios[stage])}" for stage in STAGES)
                notes.append(f"{entry['path']} against {against}: {parts}")
    return Table("one core, one thread", columns, rows, tuple(notes))


def _served(run: Document, model: str, events: str) -> Table:
    columns = (
        "server", "by", "clients", "p50 ms", "p99 ms", "events/s",
        "graph", "network", "queue", "other", "overhead ms", "x today", "x best", "x one core",
    )  # fmt: skip
    rows = []
    for entry in run["served"]:
        if (entry["model"], entry["events"]) != (model, events):
            continue
        mean = entry["latency"]["mean"]
        shares = [entry[part] / mean for part in ("preprocess", "network", "queue")]
        ratios = [
            find(
                run["served_ratios"],
                model=model,
                events=events,
                protocol=entry["protocol"],
                concurrency=entry["concurrency"],
                against=against,
            )
            if entry["server"] == "ours"
            else None
            for against in ("today", "best")
        ]
        one = entry.get("times_one_core")
        rows.append(
            (
                TITLES[entry["server"]],
                entry["protocol"],
                str(entry["concurrency"]),
                ms(entry["latency"]["p50"]),
                _p99(entry["latency"], entry["requests"]),
                f"{entry['events_per_second']['median']:.1f}",
                *(f"{share:.0%}" for share in (*shares, 1 - sum(shares))),
                ms(entry["overhead"]["median"]) if entry["concurrency"] == 1 else "-",
                *(times(each["events_per_second"]) if each else "-" for each in ratios),
                f"{one['median']:.2f}" if one else "-",
            )
        )
    return Table("through a server", columns, rows)
