#!/usr/bin/env python3
"""Say how many servers a campaign needs, and how many of its jobs may run at once.

    python3 scripts/plan_campaign.py --events 100e6 --hours 96          # by Friday
    python3 scripts/plan_campaign.py --events 100e6 --hours 96 --rate 740 --cores 16
    python3 scripts/plan_campaign.py --docs       # docs/campaign.md again, in three minutes

It simulates every request, and starts nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from deploy.host.bootstrap import ensure_kit

ensure_kit()

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from deploy.host.cli import carry_out
from deploy.host.command_line import Parser, as_seconds, count_to, number
from deploy.host.console import Console
from deploy.host.errors import DeploymentError, KitError
from deploy.host.files import write_atomically
from scripts.benchmarks.pages import replace_section
from scripts.campaign.farm import Patience, Servers
from scripts.campaign.measured import core_seconds
from scripts.campaign.page import checked, percent, simulated
from scripts.campaign.plot import write_plot
from scripts.campaign.scenarios import run_all
from scripts.campaign.sizing import Steady, Wish, plan, steady

STORED, PICTURE = (ROOT / f"scripts/data/speed/campaign.{kind}" for kind in ("json", "png"))
REAL = ROOT / "scripts/data/speed/campaign_check.json"
PAGE = ROOT / "docs/campaign.md"
_COLUMNS = ("", "servers", "jobs", "events/s", "median", "p99", "lost", "in vain", "done in")
_MOST = 10_000
_number = number("a number above 0 and below 1e15", lambda value: 0 < value < 1e15)


def parser() -> Parser:
    parser = Parser(
        prog="python3 scripts/plan_campaign.py",
        description="Say how many servers a campaign needs, and how many jobs may run at once.",
    )
    add = parser.add_argument
    add("--events", type=_number, metavar="N", help="events of the campaign, such as 5e6")
    add("--hours", type=_number, metavar="H", help="the time there is")
    add(
        "--own", type=as_seconds, default=10.0, metavar="S",
        help="seconds that a job needs itself for each event (10)",
    )  # fmt: skip
    add("--cores", type=count_to(1024), default=16, metavar="N", help="of each server (16)")
    add("--model", default="nugraph3", help="whose measured times to take (nugraph3)")
    add("--hits", type=_number, default=1300.0, metavar="N", help="of an event (1300)")
    add(
        "--rate", type=_number, metavar="R",
        help="events per second that a server can answer, as numlkit load prints it, in place of "
        "--model and --hits; for a GPU with --cores 1",
    )  # fmt: skip
    add(
        "--spread", type=_spread, default=0.5, metavar="X",
        help="by how much events differ: standard deviation of an event's time by its mean (0.5)",
    )  # fmt: skip
    add("--timeout", type=as_seconds, default=60.0, metavar="S", help="of each request (60)")
    add(
        "--tries", type=count_to(1000), metavar="N",
        help="how often a job sends an event at most, without a pause, as LArSoft's allowedTries; "
        "default: numlkit infer's way, with pauses, until the timeout",
    )  # fmt: skip
    add("--unbounded", action="store_true", help="servers with queues of any length")
    add("--json", action="store_true", help="print one JSON document")
    add("--docs", action="store_true", help="simulate what docs/campaign.md shows, and write it")
    return parser


def _spread(text: str) -> float:
    try:
        value = round(float(text), 3)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 10")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(argv)
    console = Console("json" if options.json else "normal")
    return carry_out(lambda: _run(options, console), console)


def _run(options: argparse.Namespace, console: Console) -> int:
    if options.docs:
        _write_docs()
    else:
        _plan(options, console)
    return 0


def _plan(options: argparse.Namespace, console: Console) -> None:
    if options.events is None or options.hours is None:
        cause = "how many events, and by when?"
        raise DeploymentError(cause, "--events 5e6 --hours 96")
    rate = options.rate
    service = core_seconds(options.model, options.hits) if rate is None else options.cores / rate
    one = Servers.kit(1, options.cores, service, options.spread)
    if options.unbounded:
        one = replace(one, waiting=None, wait_s=None, notice=False)
    patience = Patience.kit(options.timeout)
    if options.tries is not None:
        patience = Patience(options.timeout, options.tries)
    wish = Wish(options.events, options.hours * 3600, options.own, patience)
    if wish.per_s > _MOST * one.capacity:
        cause = f"{wish.per_s:,.0f} events/s need more than {_MOST:,} servers"
        raise KitError(cause, "more --hours, or more --cores")
    lone = wish.own_s + one.service_s
    if wish.within_s < lone:
        cause = (
            f"one event takes {round(lone, 3):,} s, but the campaign {round(wish.within_s, 3):,} s"
        )
        raise KitError(cause, "more --hours, or less --own")
    with console.step("simulate"):
        found = plan(one, wish)
        farm = replace(one, count=found.servers)
        rows = {"the fewest jobs": steady(farm, found.fewest_jobs, wish)}
        rows["the most jobs"] = steady(farm, found.most_jobs, wish)
        rows["twice as many"] = steady(farm, 2 * found.most_jobs, wish)
        if farm.count > 1:
            fewer = replace(farm, count=farm.count - 1)
            rows["a server is lost"] = steady(fewer, found.fewest_jobs, wish)
    hours = {
        name: wish.events / row.per_s / 3600 if row.per_s else None for name, row in rows.items()
    }
    console.table(
        f"{options.events:,.0f} events in {options.hours:g} h: {wish.per_s:,.1f} events/s",
        _COLUMNS,
        [_row(name, row, hours[name]) for name, row in rows.items()],
    )
    console.line(
        f"{found.servers} x {options.cores} cores, with {found.fewest_jobs:,} to "
        f"{found.most_jobs:,} jobs at once; a server can answer {one.capacity:,.1f} events/s"
    )
    console.answer({
        "ok": True, "events_per_s": wish.per_s, "capacity_of_one": one.capacity, **asdict(found),
        "cases": {name: {**asdict(row), "hours": hours[name]} for name, row in rows.items()},
    })  # fmt: skip


def _row(name: str, row: Steady, hours: float | None) -> tuple[str, ...]:
    return (
        name,
        f"{row.servers:,}",
        f"{row.jobs:,}",
        f"{row.per_s:,.1f}",
        *("-" if time is None else f"{time * 1e3:,.0f} ms" for time in (row.p50_s, row.p99_s)),
        percent(row.lost),
        percent(row.in_vain),
        "never" if hours is None else f"{hours:,.1f} h",
    )


def _write_docs() -> None:
    runs = run_all()
    write_atomically(STORED, json.dumps({"format": 1, **runs}, indent=1) + "\n")
    write_plot(runs, PICTURE)
    write_page()


def write_page() -> None:
    """Write the sections of docs/campaign.md from the stored runs."""
    write_atomically(PAGE, page(PAGE.read_text(encoding="utf-8")))


def page(text: str) -> str:
    """Return the page with the stored runs in its sections."""
    for name, stored, section in (("simulated", STORED, simulated), ("checked", REAL, checked)):
        begin, end = f"<!-- {name}: made by scripts/plan_campaign.py -->", f"<!-- /{name} -->"
        run = json.loads(stored.read_text(encoding="utf-8"))
        text = replace_section(text, section(run), begin, end)
    return text


if __name__ == "__main__":
    raise SystemExit(main())
