#!/usr/bin/env python3
"""Measure bulk runs, alone and as batch jobs, against what the server gives 8 clients.

    python3 scripts/benchmark_bulk.py                   # twenty minutes; stores the run
    python3 scripts/benchmark_bulk.py --json run.json   # stores nothing in the checkout
    python3 scripts/benchmark_bulk.py --docs            # docs/bulk.md again, from the stored run

The ways take turns. Every 15 seconds a run is stopped for the 8 clients, which send the events of
one file again and again, and keep no answers: a host whose speed changes gives both the same.
Clients, jobs and servers share this host's cores; then the first way again, with the server on a
core of its own, as if it were another host. Batch jobs need a Slurm, on this host:
python3 -m tests.slurm COMMAND runs a command beside one on loopback, as root.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from deploy.host.bootstrap import ensure_kit

ensure_kit()
sys.path.insert(0, str(ROOT / "envs" / "numl"))

import argparse
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from statistics import fmean, median

from deploy.deployment.state import DeploymentFolder
from deploy.events.client import Client
from deploy.events.files import EventTensors
from deploy.host.cli import carry_out, end_in_order
from deploy.host.command_line import Parser, count_to
from deploy.host.console import Console
from deploy.host.errors import KitError
from deploy.host.files import write_atomically
from scripts.benchmarks.cells import Tensors
from scripts.benchmarks.clients import drive
from scripts.benchmarks.document import Document
from scripts.benchmarks.flags import as_output
from scripts.benchmarks.pages import write_section
from scripts.benchmarks.run import machine_facts

STORED, PAGE = ROOT / "scripts/data/speed/bulk.json", ROOT / "docs/bulk.md"
NUMLKIT = str(Path(sys.executable).with_name("numlkit"))
BEGIN = "<!-- bulk: made by scripts/benchmark_bulk.py from scripts/data/speed/bulk.json -->"
END = "<!-- /bulk -->"
CLIENTS, EVENTS = 8, 20
SLICE_S, SERVER_S = 15.0, 3.0
MARK = "NUMLKIT_BENCHMARK_BULK"
"""What a run and its jobs have in their environment, by which they are found."""
TASKS = 2
JOBS = ("--engine", "slurm", "--jobs", str(TASKS))
ALONE = "numlkit infer --into, the server on a core of its own"
WAYS = {
    "numlkit infer --into": (),
    "Slurm, a shared server": JOBS,
    "Slurm, a server for each job (--exec)": (*JOBS, "--exec"),
}


def parser() -> Parser:
    flags = Parser(prog="python3 scripts/benchmark_bulk.py", description=(__doc__ or "")[:80])
    add = flags.add_argument
    add("--files", type=count_to(100_000), default=1000, metavar="N", help="of 20 events (1000)")
    add("--rounds", type=count_to(100), default=3, metavar="N", help="runs of each way (3)")
    add("--json", type=as_output, metavar="FILE", help="write the run here, and nowhere else")
    add("--docs", action="store_true", help="write docs/bulk.md from the stored run, and exit")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options, console = parser().parse_args(argv), Console()
    end_in_order(signal.SIGTERM, signal.SIGHUP)
    return carry_out(lambda: _run(options, console), console)


def _run(options: argparse.Namespace, console: Console) -> int:
    if not options.docs:
        if len(os.sched_getaffinity(0)) < 2:
            cause = "one core cannot hold a server that has it alone and its clients"
            raise KitError(cause, "a host with two cores")
        try:
            run = measure(options, console)
        except subprocess.CalledProcessError as error:
            words = " ".join(map(str, error.cmd[:3]))
            raise KitError(f"{words} ... has failed, with exit status {error.returncode}") from None
        console.text(section(run))
        write_atomically(options.json or STORED, json.dumps(run, indent=1) + "\n")
    if options.json is None:
        write_section(PAGE, section(json.loads(STORED.read_text(encoding="utf-8"))), BEGIN, END)
    return 0


def measure(options: argparse.Namespace, console: Console) -> Document:
    """Return, for each round of each way, its rate (events/s) and the server's meanwhile."""
    files: int = options.files
    run: Document = {"format": 1, "machine": machine_facts(sorted(os.sched_getaffinity(0)))}
    run |= {"load_before": os.getloadavg()[0], "files": files, "ways": []}
    with tempfile.TemporaryDirectory(prefix="numlkit-bulk-") as scratch:
        folder = Path(scratch)
        first = folder / "0.h5"
        simulate = [sys.executable, "scripts/simulate_events.py", "--events", str(EVENTS)]
        subprocess.run([*simulate, str(first)], cwd=ROOT, check=True, capture_output=True)
        paths = [folder / f"{number}.h5" for number in range(files)]
        for path in paths[1:]:
            shutil.copy(first, path)
        (folder / "files.txt").write_text("".join(f"{path}\n" for path in paths))
        cores = os.sched_getaffinity(0)
        with server(cores) as url:
            run["ways"] += _in_turn(WAYS, options.rounds, folder, files, url, console)
        own = {min(cores)}
        with server(own) as url, on(cores - own):
            run["ways"] += _in_turn({ALONE: ()}, options.rounds, folder, files, url, console)
    return run


def _in_turn(
    ways: Mapping[str, tuple[str, ...]],
    rounds: int,
    folder: Path,
    files: int,
    url: str,
    console: Console,
) -> list[Document]:
    found: dict[str, list[Document]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, flags in ways.items():
            rates = in_slices(folder, files, flags, url)
            found[name].append(rates)
            rate, server = rates["rate"], rates["server"]
            console.line(
                f"{name}: {rate:.0f} events/s, the server {server:.0f}: {rate / server:.0%}"
            )
    return [{"way": name, "rounds": each} for name, each in found.items()]


def in_slices(folder: Path, files: int, flags: Sequence[str], url: str) -> Document:
    """Return the events/s of a run over all files, and the server's while the run is stopped.

    The former is from the command's start to its end, less the time in which it was stopped, and
    less the events that the server answers then: as many as were in flight.
    """
    into = folder / "labels"
    words = [NUMLKIT, "infer", f"@{folder}/files.txt", "--into", str(into), "--quiet", *flags]
    words += ["--concurrency", str(CLIENTS)]
    words += [] if "--exec" in flags else ["--url", url]
    stopped_s, given = 0.0, 0
    with Client(url) as client:
        read = client.read(folder / "0.h5")
        events = [event.tensors for event in read if isinstance(event, EventTensors)]
        server = [server_rate(client, events)]
        begun = time.monotonic()
        with marked(words) as process:
            while (status := _ended(process)) is None:
                stop = time.monotonic()
                with stopped():
                    server.append(server_rate(client, events))
                stopped_s += time.monotonic() - stop
                given += CLIENTS * (TASKS if flags else 1)
        taken = time.monotonic() - begun - stopped_s
    if status:
        raise subprocess.CalledProcessError(status, words)
    shutil.rmtree(into)
    return {"rate": (files * EVENTS - given) / taken, "server": fmean(server)}


def server_rate(client: Client, events: Sequence[Tensors]) -> float:
    """Return what the server gives 8 clients, in events/s."""
    connect, model = client.connect, client.model
    return drive(connect, model, events, concurrency=CLIENTS, seconds=SERVER_S).rate


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status of a process that ends within a slice."""
    try:
        return process.wait(SLICE_S)
    except subprocess.TimeoutExpired:
        return None


@contextmanager
def marked(words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command whose processes, and those of its batch jobs, `stopped` finds."""
    environment = os.environ | {MARK: str(os.getpid())}
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def stopped() -> Iterator[None]:
    """Stop the marked processes meanwhile."""
    held: set[int] = set()
    try:
        while new := _marked() - held:
            held |= new
            for pid in new:
                _signal(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in held:
            _signal(pid, signal.SIGCONT)


def _marked() -> set[int]:
    mark, found = f"{MARK}={os.getpid()}".encode(), set()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is another user's
            if mark in environment.read_bytes().split(b"\0"):
                found.add(int(environment.parent.name))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def on(cores: Collection[int]) -> Iterator[None]:
    """Run this process, and what it starts meanwhile, on some of its cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def server(cores: Collection[int]) -> Iterator[str]:
    """Yield the address of a server of the demo weights on some cores."""
    name = f"benchmark-bulk-{os.getpid()}"
    words = ["--name", name, "--models", "nugraph3", "--engine", "local", "--json"]
    try:
        with on(cores):
            done = subprocess.run([NUMLKIT, "up", *words], check=True, stdout=subprocess.PIPE)
        yield f"grpc://127.0.0.1:{json.loads(done.stdout)['ports']['grpc']}"
    finally:
        if DeploymentFolder(name).path.exists():  # not if it has not started
            subprocess.run([NUMLKIT, "down", "--name", name, "--quiet"], check=True)


def section(run: Document) -> str:
    """Return a run as a section of docs/bulk.md."""
    machine, rows = run["machine"], []
    for way in run["ways"]:
        rounds = way["rounds"]
        rate, server = (median(each[name] for each in rounds) for name in ("rate", "server"))
        ratios = sorted(each["rate"] / each["server"] for each in rounds)
        rows.append(
            f"| {way['way']} | {rate:.0f} | {server:.0f} "
            f"| {median(ratios):.0%} ({ratios[0]:.0%} to {ratios[-1]:.0%}) |"
        )
    return "\n".join(
        [
            f"{run['files']:,} files of {EVENTS} events (200 to 700 hits), nugraph3, "
            f"{machine['cores']} cores ({machine['processor']}); client,",
            "jobs and servers share them, except in the last row. "
            f"Load average before the run: {run['load_before']:.1f}.",
            f"The server's rate is what it answers to {CLIENTS} clients that send the same events",
            f"and keep no answers, for {SERVER_S:.0f} s every {SLICE_S:.0f} s, in which the run is "
            "stopped.",
            f"Medians of {len(run['ways'][0]['rounds'])} runs in turn, from the command's start to "
            "its end.",
            "",
            "| | events/s | the server, 8 clients | share of it |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
