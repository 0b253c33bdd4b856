"""Run the benchmark: in each round everything has a turn, so that ratios can be trusted."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy.host.console import Say
from scripts.benchmarks.cells import (
    Cell,
    EventSet,
    PathTimes,
    Protocol,
    Results,
    Server,
    Turn,
    plan_cells,
)
from scripts.benchmarks.clients import connector, drive
from scripts.benchmarks.counters import Counters
from scripts.benchmarks.in_process import InProcess
from scripts.benchmarks.server import REQUEST_S, BenchmarkServer, served_name


@dataclass(frozen=True)
class Settings:
    """How much is measured; in each round everything has one turn of ``seconds``."""

    models: Sequence[str]
    sets: Sequence[EventSet]
    protocols: Sequence[Protocol]
    concurrencies: Sequence[int]
    servers: Sequence[Server]
    rounds: int
    seconds: float

    def cells(self, model: str, events: EventSet) -> list[Cell]:
        return plan_cells(
            model,
            events,
            protocols=self.protocols,
            concurrencies=self.concurrencies,
            servers=self.servers,
        )


def measure(
    settings: Settings,
    worker: InProcess | None,
    server: BenchmarkServer | None,
    results: Results,
    say: Say,
) -> None:
    """Add everything to the results, round by round; without worker or server, skip their part."""
    for number in range(settings.rounds):
        for model in settings.models:
            for events in settings.sets:
                say(f"round {number + 1} of {settings.rounds}: {model}, {events.name}")
                if worker is not None:
                    _measure_in_process(settings, worker, model, events, results)
                if server is not None:
                    for cell in settings.cells(model, events):
                        turn = measure_turn(server, cell, events, settings.seconds)
                        results.served.setdefault(cell, []).append(turn)


def _measure_in_process(
    settings: Settings, worker: InProcess, model: str, events: EventSet, results: Results
) -> None:
    times, differences = worker.measure(model, events.name, settings.seconds)
    results.differences += [f"{model}, {events.name}: {each}" for each in differences]
    for path, rounds in times.items():
        key = (model, events.name, path)
        known = results.in_process.get(key)
        if known is not None:
            rounds = np.concatenate([known.rounds, rounds])
        results.in_process[key] = PathTimes(rounds)


def measure_turn(server: BenchmarkServer, cell: Cell, events: EventSet, seconds: float) -> Turn:
    """Let clients send events to the server, and read its own timings meanwhile."""
    name = served_name(cell.model, cell.server)
    # Each client's first request is not timed: what is counted later are those that are.
    connected = server.counters(name).requests + cell.concurrency
    before: list[Counters] = []
    driven = drive(
        connector(cell.protocol, server.addresses, REQUEST_S),
        server.describe(name),
        events.events,
        concurrency=cell.concurrency,
        seconds=seconds,
        started=lambda: before.append(server.counters(name, connected)),
    )
    spent = server.counters(name, connected + len(driven.latencies)).since(before[0])
    return Turn(
        latencies=driven.latencies,
        rate=driven.rate,
        preprocess=spent.preprocess,
        network=spent.network,
        queue=spent.queue,
        execute=spent.execute,
    )


def machine_facts(cores: Sequence[int]) -> dict[str, Any]:
    """Return what a reader must know about the machine and the cores used."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "used_cores": list(cores),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor()
