#!/usr/bin/env python3
"""Measure bulk runs, alone and as batch jobs, against what the server gives 8 clients.

    python3 scripts/benchmark_bulk.py                   # ten minutes; stores the run
    python3 scripts/benchmark_bulk.py --json run.json   # stores nothing in the checkout
    python3 scripts/benchmark_bulk.py --docs            # docs/bulk.md again, from the stored run

Batch jobs need a Slurm: python3 -m tests.slurm COMMAND runs a command beside one on loopback, as
root. The 8 clients send the events of one file again and again, and keep no answers. Clients, jobs
and servers share this host's cores.
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
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from deploy.events.client import Client
from deploy.host.cli import carry_out
from deploy.host.command_line import Parser, count_to
from deploy.host.console import Console
from deploy.host.files import write_atomically
from scripts.benchmarks.clients import drive
from scripts.benchmarks.document import Document
from scripts.benchmarks.flags import as_output
from scripts.benchmarks.pages import write_section
from scripts.benchmarks.run import machine_facts

STORED, PAGE = ROOT / "scripts/data/speed/bulk.json", ROOT / "docs/bulk.md"
NUMLKIT = str(Path(sys.executable).with_name("numlkit"))
BEGIN = "<!-- bulk: made by scripts/benchmark_bulk.py from scripts/data/speed/bulk.json -->"
END = "<!-- /bulk -->"
CLIENTS, EVENTS, SECONDS = 8, 20, 5.0
JOBS = ("--engine", "slurm", "--jobs", "2")
WAYS = {
    "numlkit infer --into": (),
    "Slurm, a shared server": JOBS,
    "Slurm, a server for each job (--exec)": (*JOBS, "--exec"),
}


def parser() -> Parser:
    flags = Parser(prog="python3 scripts/benchmark_bulk.py", description=(__doc__ or "")[:80])
    add = flags.add_argument
    add("--files", type=count_to(100_000), default=1000, metavar="N", help="of 20 events (1000)")
    add("--json", type=as_output, metavar="FILE", help="write the run here, and nowhere else")
    add("--docs", action="store_true", help="write docs/bulk.md from the stored run, and exit")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options, console = parser().parse_args(argv), Console()
    return carry_out(lambda: _run(options, console), console)


def _run(options: argparse.Namespace, console: Console) -> int:
    if not options.docs:
        run = measure(options.files, console)
        console.line(section(run))
        write_atomically(options.json or STORED, json.dumps(run, indent=1) + "\n")
    if options.json is None:
        write_section(PAGE, section(json.loads(STORED.read_text(encoding="utf-8"))), BEGIN, END)
    return 0


def measure(files: int, console: Console) -> Document:
    """Return the rates (events/s) of each way, and of the server before and after it."""
    run: Document = {"format": 1, "machine": machine_facts(sorted(os.sched_getaffinity(0)))}
    run |= {"load_before": os.getloadavg()[0], "files": files, "ways": []}
    with tempfile.TemporaryDirectory(prefix="numlkit-bulk-") as scratch, server() as url:
        folder = Path(scratch)
        first = folder / "0.h5"
        simulate = [sys.executable, "scripts/simulate_events.py", "--events", str(EVENTS)]
        subprocess.run([*simulate, str(first)], cwd=ROOT, check=True, capture_output=True)
        paths = [folder / f"{number}.h5" for number in range(files)]
        for path in paths[1:]:
            shutil.copy(first, path)
        (folder / "files.txt").write_text("".join(f"{path}\n" for path in paths))
        for name, flags in WAYS.items():
            before = server_rate(url, first)
            begun = time.monotonic()
            into = folder / "labels"
            words = [
                NUMLKIT,
                "infer",
                f"@{folder}/files.txt",
                "--into",
                str(into),
                "--quiet",
                *flags,
            ]
            words += ["--concurrency", str(CLIENTS)]
            words += [] if "--exec" in flags else ["--url", url]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            rate = files * EVENTS / (time.monotonic() - begun)
            shutil.rmtree(into)
            after = server_rate(url, first)
            run["ways"].append({"way": name, "rate": rate, "server": [before, after]})
            console.line(f"{name}: {rate:.0f} events/s, the server {before:.0f} and {after:.0f}")
    return run


def server_rate(url: str, file: Path) -> float:
    """Return what the server gives 8 clients, in events/s."""
    with Client(url) as client:
        events = [event.tensors for event in client.read(file)]
        return drive(
            client.connect, client.model, events, concurrency=CLIENTS, seconds=SECONDS
        ).rate


@contextmanager
def server() -> Iterator[str]:
    """Yield the address of a server of the demo weights."""
    name = f"benchmark-bulk-{os.getpid()}"
    words = ["--name", name, "--models", "nugraph3", "--engine", "local", "--json"]
    done = subprocess.run([NUMLKIT, "up", *words], check=True, stdout=subprocess.PIPE)
    try:
        yield f"grpc://127.0.0.1:{json.loads(done.stdout)['ports']['grpc']}"
    finally:
        subprocess.run([NUMLKIT, "down", "--name", name, "--quiet"], check=True)


def section(run: Document) -> str:
    """Return a run as a section of docs/bulk.md."""
    machine, rows = run["machine"], []
    for way in run["ways"]:
        server = sum(way["server"]) / len(way["server"])
        rows.append(
            f"| {way['way']} | {way['rate']:.0f} | {server:.0f} | {way['rate'] / server:.0%} |"
        )
    return "\n".join(
        [
            f"{run['files']:,} files of {EVENTS} events (200 to 700 hits), nugraph3, "
            f"{machine['cores']} cores ({machine['processor']}); client,",
            f"jobs and servers share them. Load average before the run: {run['load_before']:.1f}. "
            f"The server's rate is that of {CLIENTS} clients",
            "that send the same events and keep no answers, before and after.",
            "",
            "| | events/s | the server, 8 clients | |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
