"""What a run of the client did: counted while it runs, told at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from deploy.client.endpoint import Endpoint
from deploy.client.inference import Answer, Failure
from deploy.client.transport import ServedModel
from deploy.console import Console
from deploy.errors import KitError

_SHOWN_FAILURES = 20


@dataclass(slots=True)
class Tally:
    """What a run has done so far.

    Attributes:
        seen: Events met in the files that were opened so far.
        latencies: Seconds, one per answered event.
        label_hits: Hits by label, noise left out.
        drawing_s: Seconds spent on displays.
    """

    seen: int = 0
    hits: int = 0
    noise: int = 0
    retries: int = 0
    drawing_s: float = 0.0
    latencies: list[float] = field(default_factory=list)
    label_hits: list[int] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    displays: list[Path] = field(default_factory=list)

    def count(self, answer: Answer) -> None:
        """Add an answered event."""
        labels = answer.labels
        self.latencies.append(answer.latency_s)
        self.retries += answer.retries
        self.hits += labels.event.hits
        self.noise += int(labels.noise.sum())
        signal = labels.label[~labels.noise]
        counts = [int((signal == label).sum()) for label in range(labels.classes)]
        before = self.label_hits or [0] * len(counts)
        self.label_hits = [a + b for a, b in zip(before, counts, strict=True)]


def report(
    tally: Tally,
    model: ServedModel,
    endpoint: Endpoint,
    seconds: float,
    files: Sequence[Path],
    out: Path | None,
) -> dict[str, Any]:
    """Return the machine-readable answer.

    Args:
        tally: What the run did.
        model: The model that was asked.
        endpoint: The server.
        seconds: How long the run took.
        files: The input files.
        out: The results file, if one was written.
    """
    answered = len(tally.latencies)
    p50, p99 = np.percentile(tally.latencies, (50, 99)) if answered else (None, None)
    names = model.classes("semantic", len(tally.label_hits))
    return {
        "ok": not tally.failures,
        "model": model.name,
        "weights": model.parameters.get("weights") or None,
        "endpoint": endpoint.url,
        "files": [str(path) for path in files],
        "events": answered,
        "hits": tally.hits,
        "labels": dict(zip(names, tally.label_hits, strict=True)),
        "noise": tally.noise,
        "seconds": round(seconds, 3),
        "drawing_seconds": round(tally.drawing_s, 3),
        # Drawing is the client's own pleasure: it says nothing about the server.
        "events_per_second": round(answered / max(seconds - tally.drawing_s, 1e-3), 3),
        "latency_p50_ms": None if p50 is None else round(1e3 * float(p50), 2),
        "latency_p99_ms": None if p99 is None else round(1e3 * float(p99), 2),
        "retries": tally.retries,
        "out": None if out is None else str(out),
        "displays": [str(path) for path in tally.displays],
        "failed": [
            {"event_id": f.event_id, "file": f.source, "reason": f.reason} for f in tally.failures
        ],
    }


def show(report: dict[str, Any], tally: Tally, console: Console) -> None:
    """Print the answer for a person: counts, speed, files, and the failed events.

    Where nothing was answered, what went wrong is all there is to tell.
    """
    if not report["events"] and tally.failures:
        if console.mode != "json":  # there the answer names them
            for line in _failed(tally):
                console.error(KitError(line))
        return
    weights = f" ({report['weights']})" if report["weights"] else ""
    console.line(
        f"{report['events']} events, {report['hits']:,} hits: "
        f"{report['model']}{weights} at {report['endpoint']}"
    )
    if report["events"]:
        counts = [*report["labels"].items(), ("noise", report["noise"])]
        console.line(f"  labels   {', '.join(f'{name} {n:,}' for name, n in counts)}")
        drawing = f", of it {tally.drawing_s:.2g} s drawing" if tally.displays else ""
        repeated = f"; {tally.retries} requests repeated" if tally.retries else ""
        console.line(
            f"  speed    {report['events_per_second']:.3g} events/s "
            f"({report['seconds']:.3g} s{drawing}); latency p50 "
            f"{report['latency_p50_ms']:.3g} ms, p99 {report['latency_p99_ms']:.3g} ms{repeated}"
        )
    if report["out"]:
        console.line(f"  results  {report['out']}")
    if tally.displays:
        shown = tally.displays[0] if len(tally.displays) == 1 else tally.displays[0].parent
        console.line(f"  display  {shown} ({len(tally.displays)} PNG)")
    if tally.failures:
        console.line(f"{len(tally.failures)} failed:")
        for line in _failed(tally):
            console.line(f"  {line}")


def _failed(tally: Tally) -> Iterator[str]:
    """Yield a line for each failure, and one for those that are too many to show."""
    for failure in tally.failures[:_SHOWN_FAILURES]:
        named = "" if failure.event_id is None else "event {},{},{}: ".format(*failure.event_id)
        yield f"{named}{failure.reason}"
    if len(tally.failures) > _SHOWN_FAILURES:
        yield f"and {len(tally.failures) - _SHOWN_FAILURES} more (--json lists all)"
