"""Send the events of HDF5 files to a server; write labels per hit, and event displays."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from deploy.client.asked import add_server_options, asked_endpoints
from deploy.deployment.deployment import load_deployment
from deploy.deployment.options import tls_files
from deploy.events.bulk import Progress, label_files, weights_of
from deploy.events.client import Client
from deploy.events.display import check_folder
from deploy.events.grouping import EventId
from deploy.events.inference import Failure
from deploy.events.run import Tally, send
from deploy.events.shares import Campaign, preview, run_campaign
from deploy.host.batch.settings import load_settings
from deploy.host.cli import Parser, make_parser, run
from deploy.host.command_line import count_to, quote
from deploy.host.console import Console, counted
from deploy.host.errors import ClientError, DeploymentError, KitError

_SHOWN_FAILURES = 20
_NUMLKIT = (str(Path(sys.executable).with_name("numlkit")),)


def parser() -> Parser:
    flags = make_parser("infer", __doc__, deployment=False)
    add = flags.add_argument
    add(
        "files",
        nargs="+",
        action=_Files,
        metavar="FILE.h5",
        help="pynuml or pandas HDF5 files; @LIST: those listed in a file",
    )
    add_server_options(flags)
    add("--model", default="nugraph3", help="the model to use (default: %(default)s)")
    add("--out", type=Path, metavar="results.h5", help="write labels and scores per hit")
    into = "write a results file per input there, and skip those that are there already"
    add("--into", type=Path, metavar="FOLDER", help=into)
    add("--display", type=Path, metavar="DIR", help="write an event display (PNG) per event")
    event, only = "RUN,SUBRUN,EVENT", "only this event; may be repeated"
    add("--event", type=_event_id, action="append", default=[], metavar=event, help=only)
    batch = flags.add_argument_group("batch jobs", "with --into, a share of the files each")
    add = batch.add_argument
    engine = "slurm, htcondor, or a TOML file such as deploy/sites/batch/slurm.toml"
    add("--engine", metavar="NAME|FILE", help=engine)
    add("--jobs", type=count_to(100_000), metavar="N", help="jobs that run at once (10)")
    own = "each job has a server of its own, by numlkit exec: of a deployment file, or from a .sif"
    add("--exec", nargs="?", const="", metavar="TOML|SIF", help=own)
    add("--dry-run", action="store_true", help="show what would be submitted")
    return flags


class _Files(argparse.Action):
    """Takes paths, and for ``@LIST`` those in the lines of a file, which need not be UTF-8."""

    def __call__(
        self,
        flags: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        given: str | Sequence[object] | None,
        _: str | None = None,
    ) -> None:
        files: list[Path] = []
        for text in map(str, given or ()):
            if not text.startswith("@"):
                files.append(Path(text))
                continue
            try:
                lines = Path(text[1:]).read_bytes().splitlines()
            except OSError as error:
                flags.error(f"{text[1:]}: {error.strerror}")
            named = [Path(os.fsdecode(line)) for line in lines if line.strip()]
            if any("\0" in str(path) for path in named):
                flags.error(f"{text[1:]} is no list of names, one on each line")
            if not named:
                flags.error(f"{text[1:]} names no file")
            files += named
        setattr(namespace, self.dest, files)


def _event_id(text: str) -> EventId:
    try:
        run, subrun, event = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not RUN,SUBRUN,EVENT") from None
    if max(map(abs, (run, subrun, event))) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r}: ids are of 64 bits")
    return run, subrun, event


def _infer(options: argparse.Namespace, console: Console) -> int:
    out: Path | None = options.out
    for flag, path in (("--out", out), ("--display", options.display)):
        if path is not None and not path.parent.is_dir():
            remedy = f"mkdir -p {quote(str(path.parent))}, or another {flag}"
            raise DeploymentError(f"no such folder: {path.parent}", remedy)
    if options.into is not None and (out or options.display or options.event):
        raise DeploymentError("--into goes without --out, --display and --event")
    if options.engine is not None:
        if options.into is None:
            raise DeploymentError("--engine needs --into FOLDER")
        return _submit(options, console)
    if options.jobs or options.exec is not None or options.dry_run:
        raise DeploymentError("--jobs, --exec and --dry-run need --engine")
    if options.display is not None:
        check_folder(options.display)
    if out is not None and any(_same(out, path) for path in options.files):
        raise ClientError(f"--out {out} is one of the input files")
    client = client_of(options)
    if options.into is not None:
        with client:
            return _label_files(options, client, console)
    with client, console.progress("events") as advance:
        tally = send(
            options.files,
            client.model,
            client.url,
            client.connect,
            wanted=options.event,
            out=out,
            displays=options.display,
            concurrency=options.concurrency,
            progress=lambda t: advance(t.done, t.seen, f"{len(t.failures)} failed"),
        )
    report = tally.report(client.model, client.url, options.files)
    _show(client.model.title, report, tally, console)
    if out is not None and tally.out is None and out.exists():
        console.say(f"{out} is left as it was: no event was answered")
    if tally.ended is not None and console.mode != "json":
        console.error(tally.ended)
    console.answer(report)
    return 128 + tally.interrupted if tally.interrupted else 0 if tally.ok else 1


def client_of(options: argparse.Namespace) -> Client:
    """Return a client of the servers that flags name; it follows a folder that names them."""
    files: dict[str, Any] = {} if options.servers is None else tls_files(options)
    asked = asked_endpoints(options)  # it also refuses flags that --servers would ignore
    return Client(
        *(asked if options.servers is None else ()),
        servers=options.servers,
        **files,
        model=options.model,
        timeout=options.timeout,
        concurrency=options.concurrency,
    )


def _label_files(options: argparse.Namespace, client: Client, console: Console) -> int:
    with console.progress("files") as advance:
        found = label_files(
            options.files,
            options.into,
            client.model,
            client.url,
            client.connect,
            client.refuse_other_weights,
            concurrency=options.concurrency,
            progress=lambda p: advance(p.done, p.files, counted(p.events, "event")),
        )
    return _summary(found, options.into, console)


def _submit(options: argparse.Namespace, console: Console) -> int:
    """Have batch jobs label the files."""
    settings = load_settings(options.engine, {"jobs": options.jobs})
    weights = None
    words = [*_NUMLKIT, "infer", "--quiet", "--into", str(options.into.absolute())]
    words += ["--model", options.model, "--concurrency", str(options.concurrency)]
    words += ["--timeout", f"{options.timeout:g}"]
    if options.exec is not None:
        if options.url or options.name or options.servers:
            cause = "--exec is a server for each job: leave --url, --name and --servers out"
            raise DeploymentError(cause)
        server = [*_server(options.exec), "--models", options.model, "--cpus", str(settings.cpus)]
        words = [*_NUMLKIT, "exec", *server, "--", *words, "--protocol", options.protocol or "grpc"]
    else:
        endpoints = asked_endpoints(options)
        with Client(*endpoints, model=options.model, timeout=options.timeout) as client:
            weights = weights_of(client.model)
        if options.servers is not None:
            words += ["--servers", str(options.servers.absolute())]
        else:
            words += [word for endpoint in endpoints for word in ("--url", endpoint.url)]
        for flag, path in tls_files(options).items():
            words += [f"--{flag}", str(path.absolute())] if path is not None else []
    folder = options.into
    files = tuple(options.files)
    campaign = Campaign(files, folder, tuple(words), settings, options.model, weights)
    if options.dry_run:
        rendered = preview(campaign)
        for name, text in rendered.items():
            console.text(f"# {name}\n{text}\n")
        console.answer({"ok": True, "files": rendered})
        return 0
    with console.progress("files") as advance:
        found = run_campaign(
            campaign, say=console.say, progress=lambda p, words: advance(p.done, p.files, words)
        )
    return _summary(found, folder, console)


def _server(given: str) -> list[str]:
    """Return the words of ``numlkit exec`` that say which server a job starts."""
    if not given:
        return ["--engine", "local"]
    path = Path(given).absolute()
    if path.suffix == ".toml":
        load_deployment(path, {})  # a mistake in it is told here, not by each job
        return [str(path)]
    if not path.exists():
        raise DeploymentError(f"--exec {given}: no such file", "correct the path")
    return ["--engine", "apptainer", "--image", str(path)]


def _summary(found: Progress, into: Path, console: Console) -> int:
    sources = ((each.source, each.reason.removeprefix(f"{each.source}: ")) for each in found.left)
    for line in _first([f"left: {source}: {reason}" for source, reason in sources]):
        console.line(line)
    console.line(
        f"{found.done:,} of {counted(found.files, 'file')} done in {into}, "
        f"{found.skipped:,} of them before; {counted(found.events, 'event')}, "
        f"{found.failed:,} refused"
    )
    ok = found.done == found.files
    console.answer(
        {
            "ok": ok, "into": str(into), "files": found.files, "done": found.done,
            "skipped": found.skipped, "events": found.events, "refused": found.failed,
            "left": [{"file": each.source, "reason": each.reason} for each in found.left],
        }
    )  # fmt: skip
    return 0 if ok else 1


def _same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)  # resolve() raises for a link to itself


def _show(title: str, report: dict[str, Any], tally: Tally, console: Console) -> None:
    """Print counts, speed, files and failed events; only failures if nothing was answered."""
    if not report["events"] and tally.failures:
        show_failures(tally.failures, console, answered=False)
        return
    console.line(
        f"{counted(report['events'], 'event')}, {counted(report['hits'], 'hit')}: "
        f"{title} at {report['endpoint']}"
    )
    if report["events"]:
        counts = [*report["labels"].items(), ("noise", report["noise"])]
        console.line(f"  labels   {', '.join(f'{name} {n:,}' for name, n in counts)}")
        drawing = f", {tally.drawing_s:.2g} s of it drawing" if tally.displays else ""
        retried = f"; {counted(tally.retries, 'retry', 'retries')}" if tally.retries else ""
        console.line(
            f"  speed    {report['events_per_second']:.3g} events/s "
            f"({report['seconds']:.3g} s{drawing}); latency p50 "
            f"{report['latency_p50_ms']:.3g} ms, p99 {report['latency_p99_ms']:.3g} ms{retried}"
        )
    if report["out"]:
        console.line(f"  results  {report['out']}")
    if tally.displays:
        shown = tally.displays[0] if len(tally.displays) == 1 else tally.displays[0].parent
        console.line(f"  display  {shown} ({len(tally.displays)} PNG)")
    if report["events"] and not (report["out"] or tally.displays or tally.ended):
        console.line("  nothing is written without --out FILE.h5 or --display FOLDER")
    show_failures(tally.failures, console, answered=True)


def show_failures(
    failures: Sequence[Failure], console: Console, *, answered: bool, told: str = "failed"
) -> None:
    """Print the first failed events: as errors, if nothing was answered."""
    lines = []
    for failure in failures:
        named = "" if failure.event_id is None else "event {},{},{}: ".format(*failure.event_id)
        lines.append(f"{named}{failure.reason}")
    if failures and answered:
        console.line(f"{len(failures)} {told}:")
    for line in _first(lines):
        if answered:
            console.line(f"  {line}")
        elif console.mode != "json":  # there the answer names them
            console.error(KitError(line))


def _first(lines: list[str]) -> list[str]:
    """Return the first lines, and how many more there are."""
    if (more := len(lines) - _SHOWN_FAILURES) <= 0:
        return lines
    return [*lines[:_SHOWN_FAILURES], f"and {more} more (--json lists all)"]


main = partial(run, _infer, parser)
