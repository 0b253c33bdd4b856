#!/usr/bin/env python3
"""Measure what an event takes: with NuGraph's own code, in one process, and through a server.

    python3 scripts/benchmark.py                       # everything; about nine minutes
    python3 scripts/benchmark.py --quick               # a minute, to see that it works
    python3 scripts/benchmark.py --json run.json --plot run.png
    python3 scripts/benchmark.py memory                # 5,000 events, and what instances hold
    python3 scripts/benchmark.py start                 # where the time of a start goes
    python3 scripts/benchmark.py heal                  # how soon a dead model process is replaced
    python3 scripts/benchmark.py extension             # what the feature extension adds
    python3 scripts/benchmark.py releases --triton 26.07 --triton PATH   # beside 24.10
    python3 scripts/benchmark.py readme                # README and docs, from stored runs

The reference is nugraph's and pynuml's own code, of the generation that a model is of: 25.4.0 for
those of the repository. Preprocessing is pynuml's, the network nugraph's, by PyTorch Geometric.
In one process, on one core, it is measured with gradients on, as it is mostly served, and off;
and through the same Triton that serves ours, as it is served today (one instance, torch's own
number of threads) and at its best (an instance per core with one thread, gradients off).
Everything has its turn in each of several rounds, side by side; answers are compared first.
The server is the benchmark's own, on loopback; clients share its cores.
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
import random
import signal
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing

import numpy as np
from numl_bench.events import events_of_size, typical_events, write_sets
from numl_demo.simulate import SimulationError

from deploy.artefacts.triton import named_by_flag
from deploy.deployment.deployment import DEFAULT_MODELS, Deployment
from deploy.engines.local import LocalEngine
from deploy.engines.resolved import Resolved
from deploy.environment.environment import plan_environment
from deploy.events.files import EventFile
from deploy.host.cli import assignments, carry_out, end_in_order
from deploy.host.command_line import Parser
from deploy.host.console import Console, Say
from deploy.host.errors import DeploymentError, KitError
from deploy.host.files import write_atomically
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.release import DEFAULT
from deploy.triton.stage import find_model
from scripts.benchmarks.arguments import benchmark_parser
from scripts.benchmarks.cells import SERVERS, EventSet, Results
from scripts.benchmarks.document import Document, document
from scripts.benchmarks.extension import extension_table, measure_extension
from scripts.benchmarks.heal import heal_document, heal_table, measure_heals
from scripts.benchmarks.in_process import InProcess
from scripts.benchmarks.memory import memory_document, memory_table, watch_memory
from scripts.benchmarks.pages import write_section
from scripts.benchmarks.plot import plot
from scripts.benchmarks.readme import BEGIN, END, section, stored_runs, summary
from scripts.benchmarks.releases import measure_releases, releases_page, releases_table
from scripts.benchmarks.run import Settings, machine_facts, measure
from scripts.benchmarks.server import (
    BenchmarkEngine,
    benchmark_deployment,
    benchmark_server,
    weights_of,
)
from scripts.benchmarks.start import measure_starts, start_document, start_table
from scripts.benchmarks.tables import Table, tables
from scripts.nugraph25 import nugraph25

MODELS = ("nugraph3", "nugraph2")
MEMORY_EVENTS = 60
SETTLED_EVENTS = 1000
QUICK = {
    "hits": (200, 300), "loaded_hits": (300,), "events": 2, "concurrency": (1, 4),
    "rounds": 1, "seconds": 0.2, "count": 500,
}  # fmt: skip
STORED = ROOT / "scripts" / "data" / "speed"


def parser() -> Parser:
    return benchmark_parser(__doc__)


def event_sets(options: argparse.Namespace, say: Say) -> list[EventSet]:
    given = [] if options.file is None else [_given_set(options)]
    sets = []
    for hits in sorted({*options.hits, *options.loaded_hits}):
        say(f"simulating {options.events} events of about {hits} hits")
        events = typical_events(hits, options.events, options.seed)
        sets.append(EventSet(f"{hits} hits", events, hits in options.loaded_hits))
    return sets + given


def _given_set(options: argparse.Namespace) -> EventSet:
    with EventFile(options.file) as file:
        wanted = range(min(len(file), options.events))
        events = [dict(file.read(index).tensors) for index in wanted]
    return EventSet(options.file.name, events, loaded=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 1 if any answer differs from the reference's."""
    flags = parser()
    options = flags.parse_args(argv)
    if options.quick:
        flags.set_defaults(**QUICK)
        options = flags.parse_args(argv)
    usual = DEFAULT_MODELS if options.what in ("start", "heal") else MODELS
    options.models = options.models or usual
    console = Console()
    # Ended by a signal, it stops its server and removes what it has written.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_in_order(signal.SIGTERM, signal.SIGHUP)
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    return carry_out(lambda: _run(options, console), console)


def _run(options: argparse.Namespace, console: Console) -> int:
    for model in options.models:  # before events are simulated
        find_model(MODEL_REPOSITORY, model)
    commands = {
        "speed": speed,
        "memory": memory,
        "start": start,
        "heal": heal,
        "extension": extension,
        "releases": releases,
        "readme": readme,
    }
    try:
        return commands[options.what](options, console)
    except SimulationError as error:
        raise KitError(str(error)) from None


def _deployment(options: argparse.Namespace) -> Deployment:
    return benchmark_deployment(
        options.models,
        checkpoints=assignments(options.checkpoint, "--checkpoint"),
        norms=assignments(options.norm, "--norm"),
    )


def _clock(console: Console) -> Say:
    started = time.monotonic()
    return lambda text: console.say(f"{time.monotonic() - started:5.0f} s  {text}")


def speed(options: argparse.Namespace, console: Console) -> int:
    cores, say = sorted(os.sched_getaffinity(0)), _clock(console)
    deployment = _deployment(options)
    sets = event_sets(options, say)
    settings = Settings(
        models=options.models,
        sets=sets,
        protocols=options.protocols,
        concurrencies=sorted(set(options.concurrency)),
        servers=SERVERS if options.only is None else ("ours",),
        rounds=options.rounds,
        seconds=options.seconds,
    )
    results = Results(machine=machine_facts(cores))
    results.sets = {each.name: (each.hits, each.spacepoints, len(each.events)) for each in sets}
    with ExitStack() as stack:
        server = worker = None
        BenchmarkEngine(Resolved(deployment)).prepare(say)
        if options.only != "in-process":
            server = stack.enter_context(benchmark_server(deployment, settings.servers, say))
            results.machine["instances"] = dict(server.plan.instances)
        folders = weights_of(deployment)
        results.models = {model: _network(folder) for model, folder in folders.items()}
        if options.only != "server":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_sets(folder / "events.npz", {each.name: each.events for each in sets})
            worker = stack.enter_context(
                closing(
                    InProcess(
                        plan_environment("cpu").make(say),
                        nugraph25(),
                        folders,
                        folder / "events.npz",
                        core=cores[-1],
                    )
                )
            )
            results.machine |= worker.facts
        results.machine["load_before"] = os.getloadavg()
        measure(settings, worker, server, results, say)
        results.machine["load_after"] = os.getloadavg()
    run = document(results)
    _tell(run, tables(run), options, console)
    for difference in run["differences"]:
        console.line(f"ANSWERS DIFFER: {difference}")
    if options.plot:
        plot(run, options.plot)
    return 1 if run["differences"] else 0


def memory(options: argparse.Namespace, console: Console) -> int:
    """Measure what model instances hold after thousands of events of all sizes."""
    say, deployment = _clock(console), _deployment(options)
    smallest, largest = min(options.hits), max(options.hits)
    say(f"simulating {MEMORY_EVENTS} events of {smallest} to {largest} hits")
    hits = np.geomspace(smallest, largest, MEMORY_EVENTS).astype(int)
    events = [events_of_size(int(size), 1, options.seed)[0] for size in hits]
    random.Random(options.seed).shuffle(events)
    BenchmarkEngine(Resolved(deployment)).prepare(say)
    growths = []
    with benchmark_server(deployment, ("ours",), say) as server:
        for model in options.models:
            growths += watch_memory(server, model, events, count=options.count, say=say)
    run = memory_document(
        growths,
        settled=min(SETTLED_EVENTS, options.count // 2),
        count=options.count,
        hits=(smallest, largest),
    )
    return _tell(run, [memory_table(run)], options, console)


def start(options: argparse.Namespace, console: Console) -> int:
    say, deployment = _clock(console), _deployment(options)
    LocalEngine(Resolved(deployment)).prepare(say)
    starts = measure_starts(deployment, options.rounds, say)
    run = start_document(starts, len(options.models))
    return _tell(run, [start_table(run)], options, console)


def heal(options: argparse.Namespace, console: Console) -> int:
    say, deployment = _clock(console), _deployment(options)
    LocalEngine(Resolved(deployment)).prepare(say)
    run = heal_document(measure_heals(deployment, options.rounds, say))
    return _tell(run, [heal_table(run)], options, console)


def extension(options: argparse.Namespace, console: Console) -> int:
    """Measure what nugraph's feature extension adds to an event."""
    say, deployment = _clock(console), _deployment(options)
    sets = event_sets(options, say)
    BenchmarkEngine(Resolved(deployment)).prepare(say)
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.npz"
        write_sets(events, {each.name: each.events for each in sets})
        run = measure_extension(
            plan_environment("cpu").make(say),
            weights_of(deployment),
            events,
            options.rounds * options.seconds,
            max(os.sched_getaffinity(0)),
        )
    return _tell(run, [extension_table(run)], options, console)


def releases(options: argparse.Namespace, console: Console) -> int:
    """Measure releases of Triton beside each other; the default one is the first."""
    if not options.loaded_hits:
        cause = "releases answer the events of --loaded-hits, and there are none"
        raise DeploymentError(cause, "--loaded-hits 200 1300")
    say = _clock(console)
    tritons = [DEFAULT, *(named_by_flag(triton) for triton in options.triton)]
    run = measure_releases(
        [
            benchmark_deployment(options.models, triton=triton, number=number)
            for number, triton in enumerate(tritons)
        ],
        [each for each in event_sets(options, say) if each.loaded],
        rounds=options.rounds,
        seconds=options.seconds,
        built=options.built,
        say=say,
    )
    return _tell(run, [releases_table(run)], options, console)


def readme(options: argparse.Namespace, console: Console) -> int:
    """Write the sections on speed of the README and docs/benchmarks.md, from the stored runs."""
    runs = stored_runs(STORED)
    releases = json.loads((STORED / "releases.json").read_text(encoding="utf-8"))
    pages = {
        ROOT / "README.md": summary(runs["speed"]),
        ROOT / "docs" / "benchmarks.md": section(**runs),
        ROOT / "docs" / "triton-releases.md": releases_page(releases),
    }
    for path, text in pages.items():
        write_section(path, text, BEGIN, END)
        console.line(f"updated: {path}")
    plot(runs["speed"], STORED / "speed.png")
    console.line(f"updated: {STORED / 'speed.png'}")
    return 0


def _tell(
    run: Document, shown: Iterable[Table], options: argparse.Namespace, console: Console
) -> int:
    for table in shown:
        console.table(table.title, table.columns, table.rows)
        for note in table.notes:
            console.line(f"  {note}")
    if options.json is not None:
        write_atomically(options.json, json.dumps(run, indent=1) + "\n")
    return 0


def _network(folder: Path) -> str:
    card = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    return f"{card['network']['kind']} {card['network']['generation']}"


if __name__ == "__main__":
    sys.exit(main())
