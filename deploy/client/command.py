"""``scripts/infer.py``: events of HDF5 files through a Triton server."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deploy.arguments import as_seconds
from deploy.cli import INTERRUPTED, Parser, run
from deploy.client.answers import Labels
from deploy.client.diagnosis import why_unreachable
from deploy.client.display import file_name, write_display
from deploy.client.endpoint import Endpoint, ProtocolName
from deploy.client.errors import ClientError, ServerAwayError
from deploy.client.events import EventFile, EventTensors
from deploy.client.grouping import EventId
from deploy.client.inference import Answer, Failure, ServerLostError, infer
from deploy.client.results import ResultsWriter
from deploy.client.summary import Tally, report, show
from deploy.client.tables import EventFileError
from deploy.client.transport import ServedModel, TritonTransport
from deploy.console import Console
from deploy.errors import DeploymentError, KitError, NotRunningError
from deploy.state import DeploymentFolder, default_endpoint

_PROGRESS_SECONDS = 10.0
_DIAGNOSIS_SECONDS = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code.

    0: every event was answered; 1: some were not, or the run could not start;
    2: wrong usage; 130: interrupted.
    """
    return run(_infer, _parser(), arguments)


def _parser() -> Parser:
    parser = Parser(
        prog="python3 scripts/infer.py",
        description="Send the events of HDF5 files to a NuGraph server.",
    )
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE.h5", help="pynuml or pandas HDF5 files")
    server = parser.add_mutually_exclusive_group()
    server.add_argument(
        "--url", help="[http|https|grpc|grpcs://]host[:port] (default: the running deployment)"
    )
    server.add_argument("--name", help="the running deployment to ask, where there are several")
    add("--protocol", choices=("http", "grpc"), help="for a URL without scheme (default: http)")
    add("--ssl", action="store_true", help="encrypt the connection")
    add("--ca", type=Path, metavar="FILE", help="PEM file of the authority to trust; implies --ssl")
    add("--cert", type=Path, metavar="FILE", help="PEM file of your certificate, for mutual TLS")
    add("--key", type=Path, metavar="FILE", help="PEM file of its private key")
    add("--model", default="nugraph3", help="the model to ask (default: %(default)s)")
    add("--out", type=Path, metavar="results.h5", help="write labels and scores per hit")
    add("--display", type=Path, metavar="DIR", help="write an event display (PNG) per event")
    add(
        "--event",
        type=_event_id,
        action="append",
        metavar="RUN,SUBRUN,EVENT",
        help="only this event; may be repeated",
    )
    add("--concurrency", type=_at_least_one, default=4, metavar="N", help="requests at once (4)")
    add("--timeout", type=as_seconds, default=60.0, metavar="S", help="seconds per request (60)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="answer with one JSON document")
    output.add_argument("--quiet", action="store_true", help="no progress, only the answer")
    return parser


def _event_id(text: str) -> EventId:
    try:
        run, subrun, event = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not RUN,SUBRUN,EVENT") from None
    return run, subrun, event


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1024")
    return int(text)


def _infer(options: argparse.Namespace, console: Console) -> int:
    out: Path | None = options.out
    for flag, path in (("--out", out), ("--display", options.display)):
        if path is not None and not path.parent.is_dir():
            remedy = f"mkdir -p {path.parent}, or another {flag}"
            raise DeploymentError(f"no such folder: {path.parent}", remedy)
    endpoint = _endpoint(options)
    if out is not None and any(_same(out, path) for path in options.files):
        raise ClientError(f"--out {out} is one of the input files")

    def connect() -> TritonTransport:
        return TritonTransport(endpoint, timeout=options.timeout)

    model = _describe(connect, options.model, endpoint)
    tally = Tally()
    stopped: KitError | None = None
    stop = threading.Event()
    started = time.monotonic()
    with ExitStack() as stack:
        writer = None
        if out is not None:
            writer = stack.enter_context(ResultsWriter(out, model, endpoint.url))
        advance = stack.enter_context(_progress(console, tally))
        interrupts = stack.enter_context(_interrupts(stop))
        events = _events(options.files, options.event, model, tally)
        outcomes = infer(events, model, connect, concurrency=options.concurrency, stop=stop)
        try:
            for outcome in outcomes:
                _take(outcome, tally, writer, options.display, model)
                advance()
        except ServerLostError as error:
            stopped = error
        interrupted = bool(interrupts)
        unread = sum(failure.event_id is None for failure in tally.failures)
        if writer is not None:
            writer.complete = stopped is None and not interrupted and not unread
            if unread == len(options.files):
                # Nothing was there to be asked: an earlier run's results are worth more.
                writer.discard()
                out = None
    seconds = time.monotonic() - started
    document = report(tally, model, endpoint, seconds, options.files, out)
    show(document, tally, console)
    if interrupted or stopped is not None:
        unsent = tally.seen - len(tally.latencies) - len(tally.failures)
        ended = KitError(
            f"{'interrupted' if stopped is None else stopped.cause}; "
            f"{unsent} or more events of the files were not answered",
            None if stopped is None else stopped.remedy,
        )
        document |= {"ok": False, "error": ended.cause, "remedy": ended.remedy}
        if console.mode != "json":
            console.error(ended)
    console.answer(document)
    if interrupted:
        return INTERRUPTED
    return 1 if stopped is not None or tally.failures else 0


def _same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()


def _endpoint(options: argparse.Namespace) -> Endpoint:
    protocol: ProtocolName = options.protocol or "http"
    if options.url is not None:
        url = options.url
    elif options.name is not None:
        url = DeploymentFolder(options.name).require_state().url(protocol)
    else:
        url = default_endpoint(protocol)
        if url is None:
            raise NotRunningError(
                "no deployment is running",
                "start one with: python3 deploy/up.py, or name a server with --url",
            )
    return Endpoint.parse(
        url,
        protocol=options.protocol,
        tls=options.ssl,
        ca=options.ca,
        cert=options.cert,
        key=options.key,
    )


def _describe(connect: Callable[[], TritonTransport], name: str, endpoint: Endpoint) -> ServedModel:
    transport = connect()
    try:
        return transport.describe(name)
    except ServerAwayError as error:
        known = why_unreachable(endpoint, timeout=_DIAGNOSIS_SECONDS)
        raise known or ClientError(
            f"no server answers at {error.cause}",
            "start one with: python3 deploy/up.py, or name one with --url",
        ) from error
    finally:
        transport.close()


def _events(
    files: Sequence[Path], wanted: Sequence[EventId] | None, model: ServedModel, tally: Tally
) -> Iterator[EventTensors | Failure]:
    """Yield the wanted events of all files, and a failure for each that cannot be read."""
    missing = set(wanted or ())
    for path in files:
        try:
            file = EventFile(path, model.inputs, model.optional)
        except EventFileError as error:
            tally.seen += 1
            yield Failure(None, str(path), error.cause)
            continue
        with file:
            chosen = [i for i, e in enumerate(file.event_ids) if not wanted or e in wanted]
            tally.seen += len(chosen)
            for i in chosen:
                missing.discard(file.event_ids[i])
                try:
                    yield file.read(i)
                except EventFileError as error:
                    yield Failure(file.event_ids[i], str(path), error.cause)
    for event_id in sorted(missing):
        tally.seen += 1
        yield Failure(event_id, "", "no such event in the files")


def _take(
    outcome: Answer | Failure,
    tally: Tally,
    writer: ResultsWriter | None,
    displays: Path | None,
    model: ServedModel,
) -> None:
    if isinstance(outcome, Failure):
        tally.failures.append(outcome)
        if writer is not None:
            writer.fail(outcome)
        return
    if writer is not None:
        writer.add(outcome)
    if displays is not None:
        started = time.monotonic()
        tally.displays.append(_display(outcome.labels, displays, tally.displays, model))
        tally.drawing_s += time.monotonic() - started
    tally.count(outcome)


def _display(labels: Labels, folder: Path, before: Sequence[Path], model: ServedModel) -> Path:
    path = folder / file_name(labels, model.name)
    same = sum(p == path or p.stem.startswith(f"{path.stem}_again") for p in before)
    if same:
        path = path.with_stem(f"{path.stem}_again{same}")
    scores = labels.event_scores
    write_display(
        labels,
        path,
        model=model.title,
        semantic_classes=model.classes("semantic", labels.classes),
        event_classes=() if scores is None else model.classes("event", len(scores)),
    )
    return path


@contextmanager
def _interrupts(stop: threading.Event) -> Iterator[list[int]]:
    """Let the first interrupt set ``stop``, so that no event is half written.

    Yields:
        The signals that came; the second one ends the process at once.
    """
    came: list[int] = []

    def handle(number: int, _frame: object) -> None:
        came.append(number)
        stop.set()
        if len(came) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(console: Console, tally: Tally) -> Iterator[Callable[[], None]]:
    """Show how far the run is: a bar on a terminal, else a line now and then."""
    terminal = RichConsole(stderr=True, emoji=False)
    if console.mode == "normal" and terminal.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(), console=terminal) as bar:
            task = bar.add_task("events", total=None)
            yield lambda: bar.update(task, advance=1, total=tally.seen)
        return
    last = time.monotonic()

    def line() -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_SECONDS:
            last = time.monotonic()
            done = len(tally.latencies) + len(tally.failures)
            console.say(f"{done} of {tally.seen} events, {len(tally.failures)} failed")

    yield line
