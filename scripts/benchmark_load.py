#!/usr/bin/env python3
"""Measure what clients get above a server's capacity, with bounds on its queues and without.

    python3 scripts/benchmark_load.py                   # eight minutes; stores the run
    python3 scripts/benchmark_load.py --json run.json   # stores nothing in the checkout
    python3 scripts/benchmark_load.py --docs            # docs/load.md again, from the stored run

Two servers share one core and are loaded in turn; clients and front door have the other cores. It
takes two cores that nobody else uses, and the tests' environment (scripts/kit-environment --tests).
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from deploy.host.bootstrap import ensure_kit

ensure_kit()

import argparse
import asyncio
import json
import os
import signal
from collections.abc import Sequence

from deploy.client.load.plot import write_plot
from deploy.host.cli import carry_out, end_in_order
from deploy.host.command_line import Parser, as_seconds
from deploy.host.console import Console
from deploy.host.errors import KitError
from deploy.host.files import write_atomically
from scripts.benchmarks.document import Document
from scripts.benchmarks.flags import as_output
from scripts.benchmarks.load import OVERLOADED, front_door, measure, servers
from scripts.benchmarks.load_page import section
from scripts.benchmarks.pages import write_section
from scripts.benchmarks.run import machine_facts

STORED, PICTURE = ROOT / "scripts/data/speed/load.json", ROOT / "scripts/data/speed/load.png"
PAGE = ROOT / "docs/load.md"
BEGIN = "<!-- load: made by scripts/benchmark_load.py from scripts/data/speed/load.json -->"
END = "<!-- /load -->"


def parser() -> Parser:
    parser = Parser(
        prog="python3 scripts/benchmark_load.py",
        description="Measure what clients get above a server's capacity.",
    )
    add = parser.add_argument
    add(
        "--seconds",
        type=as_seconds,
        default=5.0,
        metavar="S",
        help="for each rate, three times (5)",
    )
    add("--json", type=as_output, metavar="FILE", help="write the run here, and nowhere else")
    add("--docs", action="store_true", help="write docs/load.md from the stored run, and exit")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(argv)
    console = Console()
    end_in_order(signal.SIGTERM, signal.SIGHUP)
    return carry_out(lambda: _run(options, console), console)


def _run(options: argparse.Namespace, console: Console) -> int:
    if not options.docs:
        _measure(options, console)
    if options.json is None:
        write_section(PAGE, section(json.loads(STORED.read_text(encoding="utf-8"))), BEGIN, END)
    return 0


def _measure(options: argparse.Namespace, console: Console) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        raise KitError("one core cannot hold both servers and clients", "a host with two cores")
    run: Document = {"format": 1, "machine": machine_facts([first, *others])}
    run["machine"]["load_before"] = os.getloadavg()
    with servers(first, others, console.line) as running, front_door(running["bounded"]) as door:
        run |= asyncio.run(measure(running, door, seconds=options.seconds, say=console.line))
    console.text(section(run))
    write_atomically(options.json or STORED, json.dumps(run, indent=1) + "\n")
    if options.json is None:
        curves = {k: {"capacity": run["capacity"], **run["overload"][k]} for k in OVERLOADED}
        write_plot(curves, PICTURE)


if __name__ == "__main__":
    raise SystemExit(main())
