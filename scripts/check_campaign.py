#!/usr/bin/env python3
"""Hold the simulation of campaigns against real servers: the same jobs, simulated and run.

    python3 scripts/check_campaign.py                   # nine minutes; stores the run
    python3 scripts/check_campaign.py --json run.json   # stores nothing in the checkout

It needs Docker, the kit's image (numlkit build --target image), and two cores that nobody else
uses: four servers get 0.4 of a core each, the jobs the rest.
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
from typing import Any

from deploy.host.cli import carry_out, end_in_order
from deploy.host.command_line import Parser, as_seconds, count_to
from deploy.host.console import Console
from deploy.host.files import write_atomically
from scripts.benchmarks.flags import as_output
from scripts.benchmarks.run import machine_facts
from scripts.campaign.comparison import SHORTEST_S, WITHIN, compared, differences, measure
from scripts.campaign.page import checked
from scripts.campaign.real import SERVERS, SHARE, running
from scripts.plan_campaign import REAL, write_page


def parser() -> Parser:
    parser = Parser(
        prog="python3 scripts/check_campaign.py",
        description="Hold the simulation of campaigns against real servers.",
    )
    add = parser.add_argument
    add("--repeats", type=count_to(100), default=3, metavar="N", help="runs of all rows (3)")
    add(
        "--seconds",
        type=_seconds,
        default=20.0,
        metavar="S",
        help="for each row, of each run (20)",
    )
    add("--json", type=as_output, metavar="FILE", help="write the run here, and nowhere else")
    return parser


def _seconds(text: str) -> float:
    value = as_seconds(text)
    if value < SHORTEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is less than {SHORTEST_S:g} s")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if the simulation is wrong."""
    options = parser().parse_args(argv)
    console = Console()
    end_in_order(signal.SIGTERM, signal.SIGHUP)
    return carry_out(lambda: _run(options, console), console)


def _run(options: argparse.Namespace, console: Console) -> int:
    facts = machine_facts(sorted(os.sched_getaffinity(0)))
    facts["load_before"] = os.getloadavg()
    runs = []
    for number in range(options.repeats):
        console.line(f"run {number + 1} of {options.repeats}")
        with running(console.line) as servers:
            runs.append(asyncio.run(measure(servers, options.seconds, console.line)))
    found = compared(runs, options.seconds)
    run = {"format": 2, "machine": facts, "servers": SERVERS, "share": SHARE, **found}
    console.text(checked(run))
    write_atomically(options.json or REAL, json.dumps(run, indent=1) + "\n")
    if options.json is None:
        write_page()
    return 0 if _agrees(found["rows"], console) else 1


def _agrees(rows: Sequence[dict[str, Any]], console: Console) -> bool:
    agrees = True
    for row in rows:
        for name, difference in differences(row):
            if abs(difference) > WITHIN:
                console.line(f"{row['name']}: {name} is simulated {difference:+.0%} off")
                agrees = False
    return agrees


if __name__ == "__main__":
    raise SystemExit(main())
