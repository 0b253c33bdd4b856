"""One run: the events of files through a server, into results, displays and a tally."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from deploy.client.pool import Transport
from deploy.client.transport import ServedModel
from deploy.events.answers import Labels
from deploy.events.display import DisplayError, file_name, write_display
from deploy.events.files import EventTensors
from deploy.events.graphs import open_events
from deploy.events.grouping import EventId
from deploy.events.inference import Answer, Failure, ServerLostError, infer, read_event
from deploy.events.results import ResultsWriter
from deploy.events.tables import EventFileError
from deploy.host.console import counted
from deploy.host.errors import KitError

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class Tally:
    """What a run has done so far.

    ``ended`` says why it was cut short, if it was, and ``interrupted`` by which signal.
    """

    seen: int = 0
    hits: int = 0
    noise: int = 0
    retries: int = 0
    drawing_s: float = 0.0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    label_hits: list[int] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    displays: list[Path] = field(default_factory=list)
    ended: KitError | None = None
    interrupted: int = 0
    out: Path | None = None

    @property
    def done(self) -> int:
        return len(self.latencies) + len(self.failures)

    @property
    def ok(self) -> bool:
        return self.ended is None and not self.failures

    def count(self, answer: Answer) -> None:
        labels = answer.labels
        self.latencies.append(answer.latency_s)
        self.retries += answer.retries
        self.hits += labels.event.hits
        self.noise += int(labels.noise.sum())
        counts = np.bincount(labels.label[~labels.noise], minlength=labels.classes)
        before = self.label_hits or [0] * labels.classes
        self.label_hits = [a + int(b) for a, b in zip(before, counts[: len(before)], strict=True)]

    def report(self, model: ServedModel, url: str, files: Sequence[Path]) -> dict[str, Any]:
        answered = len(self.latencies)
        latency = np.percentile(self.latencies, (50, 99)) if answered else None
        p50, p99 = (None, None) if latency is None else (round(1e3 * float(s), 2) for s in latency)
        names = model.classes("semantic", len(self.label_hits))
        document = {
            "ok": self.ok,
            "model": model.name,
            "weights": model.parameters.get("weights") or None,
            "endpoint": url,
            "files": [str(path) for path in files],
            "events": answered,
            "hits": self.hits,
            "labels": dict(zip(names, self.label_hits, strict=True)),
            "noise": self.noise,
            "seconds": round(self.seconds, 3),
            "drawing_seconds": round(self.drawing_s, 3),
            # Drawing is the client's own work and says nothing about the server.
            "events_per_second": round(answered / max(self.seconds - self.drawing_s, 1e-3), 3),
            "latency_p50_ms": p50,
            "latency_p99_ms": p99,
            "retries": self.retries,
            "out": None if self.out is None else str(self.out),
            "displays": [str(path) for path in self.displays],
            "failed": [failure.document() for failure in self.failures],
        }
        if self.ended is not None:
            document |= {"error": self.ended.cause, "remedy": self.ended.remedy}
        return document


def send(
    files: Sequence[Path],
    model: ServedModel,
    url: str,
    connect: Callable[[], Transport],
    *,
    wanted: Sequence[EventId] = (),
    out: Path | None = None,
    displays: Path | None = None,
    concurrency: int = 4,
    progress: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Send the events of ``files`` (all, or those ``wanted``); write the answers as they come.

    The first interrupt stops the run cleanly and keeps what was answered; so does the SIGTERM of a
    batch system, or a terminal that closes.
    """
    tally = Tally()
    started = time.monotonic()
    with (
        _interruptible(tally) as stop,
        nullcontext() if out is None else ResultsWriter(out, model, url) as writer,
    ):
        events = _events(files, wanted, model, tally)
        try:
            for outcome in infer(events, model, connect, concurrency=concurrency, stop=stop):
                if isinstance(outcome, Failure):
                    tally.failures.append(outcome)
                    if writer is not None:
                        writer.fail(outcome)
                else:
                    if writer is not None:
                        writer.add(outcome)
                    tally.count(outcome)
                    if displays is not None and tally.ended is None:
                        _draw(outcome.labels, displays, model, tally)
                progress(tally)
        except ServerLostError as error:
            tally.ended = error
        cut = tally.interrupted > 0 or tally.seen > tally.done
        if cut:
            why = tally.ended or KitError("interrupted")
            missed = f"at least {counted(tally.seen - tally.done, 'event')} not answered"
            tally.ended = KitError(f"{why.cause}; {missed}", why.remedy)
        if writer is not None:
            unread = any(failure.event_id is None for failure in tally.failures)
            writer.complete = not cut and not unread
            nothing_sent = all(each.event_id is None or not each.source for each in tally.failures)
            if not tally.latencies and (nothing_sent or (out is not None and out.exists())):
                # No event was answered: keep the results of an earlier run.
                writer.discarded = True
            else:
                tally.out = out
    tally.seconds = time.monotonic() - started
    return tally


def _events(
    files: Sequence[Path], wanted: Sequence[EventId], model: ServedModel, tally: Tally
) -> Iterator[EventTensors | Failure]:
    """Yield the wanted events of all files, and a failure for each that cannot be read."""
    missing = set(wanted)
    for path in files:
        try:
            file = open_events(path, model.inputs, model.optional)
        except EventFileError as error:
            tally.seen += 1
            yield Failure(None, str(path), error.cause)
            continue
        with file:
            chosen = [i for i, e in enumerate(file.event_ids) if not wanted or e in wanted]
            tally.seen += len(chosen)
            for i in chosen:
                missing.discard(file.event_ids[i])
                yield read_event(file, i)
    for event_id in sorted(missing):
        tally.seen += 1
        yield Failure(event_id, "", "no such event in the files")


def _draw(labels: Labels, folder: Path, model: ServedModel, tally: Tally) -> None:
    started = time.monotonic()
    path = folder / file_name(labels, model.name)
    same = sum(p == path or p.stem.startswith(f"{path.stem}_again") for p in tally.displays)
    if same:
        path = path.with_stem(f"{path.stem}_again{same}")
    try:
        write_display(labels, path, model)
    except DisplayError as error:
        tally.ended = error  # no more are drawn; the answers are worth more
        return
    tally.displays.append(path)
    tally.drawing_s += time.monotonic() - started


@contextmanager
def _interruptible(tally: Tally) -> Iterator[threading.Event]:
    """Yield an event that the first signal sets; a second Ctrl-C ends the process at once."""
    stop = threading.Event()

    def handle(number: int, _frame: object) -> None:
        if tally.interrupted and number == signal.SIGINT:
            raise KeyboardInterrupt
        tally.interrupted = tally.interrupted or number
        stop.set()

    heard = [each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, handle) for each in heard}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
