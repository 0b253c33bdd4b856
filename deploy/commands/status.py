"""Show a deployment's health; exit with a status other than 0 if anything is wrong."""

from __future__ import annotations

import argparse
import dataclasses
from functools import partial

from deploy.client.metrics import ModelCounts
from deploy.deployment.state import DeploymentFolder
from deploy.engines.farm import READY, Farm, read_farm, says
from deploy.engines.health import examine
from deploy.host.cli import Parser, make_parser, run
from deploy.host.command_line import as_seconds, for_this_user, quote
from deploy.host.console import Console, counted


def parser() -> Parser:
    flags = make_parser("status", "Show a deployment's health: processes, models, answers.")
    flags.add_argument(
        "--timeout", type=as_seconds, default=10.0, help="seconds for an answer (default: 10)"
    )
    return flags


def _status(options: argparse.Namespace, console: Console) -> int:
    farm = read_farm(options.name)
    if farm is not None:
        return _show_farm(farm, options.timeout, console)
    folder = DeploymentFolder(options.name)
    state = folder.require_state()
    health = examine(folder, state, timeout=options.timeout)
    rows = []
    for model in health.models:
        stubs = f"{model.alive} of {model.wanted}" if model.wanted else "none needed"
        ready = "ready" if model.smoke.ready else "not ready"
        rows.append([model.model, stubs, ready, model.smoke.words, *_request_cells(model.counts)])
    rows += [
        [model, "-", "left out", why.cause, *["-"] * 4] for model, why in health.broken.items()
    ]
    title = f"deployment {state.name}: {'healthy' if health.ok else 'not healthy'}"
    columns = ("model", "stubs", "says", "smoke inference", "requests", "failed", "p50", "p99")
    console.table(title, columns, rows)
    for problem in health.problems:
        console.line(f"problem: {problem}")
    remedy = for_this_user(health.remedy)
    if remedy is not None:
        console.line(f"  try: {remedy}")
    for why in health.broken.values():
        console.line(f"left out: {why.cause}")
        if why.remedy is not None:
            console.line(f"  try: {for_this_user(why.remedy)}")
    healed = (
        f"healed stubs {counted(state.heals, 'time')}, "
        f"restarted the server {counted(state.restarts, 'time')}"
    )
    console.line(f"{state.url('http')}  {state.url('grpc')}")
    if state.runs is not None:
        console.line(f"runs {state.runs}")
    console.line(f"phase {state.phase}; {healed}")
    console.answer(
        {
            "ok": health.ok,
            "problems": health.problems,
            "remedy": remedy,
            "models": [{**dataclasses.asdict(m), "ok": m.ok} for m in health.models],
            "state": state.model_dump(mode="json"),
        }
    )
    return 0 if health.ok else 1


def _show_farm(farm: Farm, timeout: float, console: Console) -> int:
    jobs = [task for _, task in farm.system.listed(farm.job)]
    entries = farm.registry.entries()
    rows = [(entry.url, says(entry.url, farm.models, timeout=timeout)) for entry in entries]
    ready = [url for url, words in rows if words == READY]
    good = len(ready) >= farm.servers
    title = f"farm {farm.name}: {len(ready)} of {counted(farm.servers, 'server')} ready"
    console.table(title, ("server", "says"), rows)
    running = sum(task.running for task in jobs)
    console.line(f"{counted(running, 'job')} running, {len(jobs) - running} waiting: {farm.job}")
    console.line(f"clients find them by --servers {quote(str(farm.registry.folder))}")
    if not good and len(jobs) < farm.servers:
        console.line("  try: the same numlkit up again; it starts those that are missing")
    console.answer({
        "ok": good, "job": farm.job, "running": running, "waiting": len(jobs) - running,
        "servers": [{"url": url, "ready": words == READY} for url, words in rows],
        "registry": str(farm.registry.folder),
    })  # fmt: skip
    return 0 if good else 1


def _request_cells(counts: ModelCounts | None) -> list[str]:
    """Return requests, failures, p50 and p99 in words."""
    if counts is None:
        return ["-"] * 4
    times = [f"{1e3 * s:.0f} ms" if s is not None else "-" for s in (counts.p50, counts.p99)]
    return [str(counts.requests), str(counts.failures), *times]


main = partial(run, _status, parser)
