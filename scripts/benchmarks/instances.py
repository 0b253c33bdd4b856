"""An instance in each of several processes, as Triton's Python backend has it, or all in one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.environment.environment import Environment
from deploy.host.console import Say
from scripts.benchmarks.child import Child
from scripts.benchmarks.document import Document
from scripts.benchmarks.tables import Table


@dataclass(frozen=True, slots=True)
class Shape:
    """What so many instances do in one way, round by round.

    Seconds until all have answered every event once, bytes that all hold together (what processes
    share is counted once), and events answered in a second, by set of events.
    """

    ready: list[float]
    resident: list[int]
    rates: dict[str, list[float]]


def compare_instances(
    environment: Environment,
    model: Path,
    events: Path,
    sets: Sequence[str],
    *,
    instances: int,
    rounds: int,
    seconds: float,
    say: Say,
) -> Mapping[str, Shape]:
    """Measure both ways, in turn, round by round, each for so many seconds a set.

    ``events`` is a file with the ``sets``, as ``numl_bench`` writes it.
    """
    processes_and_threads = {
        "a process for each": (instances, 1),
        "a thread for each": (1, instances),
    }
    shapes = {name: Shape([], [], {each: [] for each in sets}) for name in processes_and_threads}
    for number in range(rounds):
        for name, (processes, threads) in processes_and_threads.items():
            say(f"round {number + 1} of {rounds}: {name}")
            arguments = [str(events), str(model), str(threads)]
            with ExitStack() as stack:
                started = time.monotonic()
                children = [
                    stack.enter_context(
                        closing(
                            Child(
                                environment,
                                "numl_bench.instances",
                                arguments,
                                scratch=events.parent,
                            )
                        )
                    )
                    for _ in range(processes)
                ]
                for child in children:
                    child.read()
                shapes[name].ready.append(time.monotonic() - started)
                for each in sets:
                    for child in children:
                        child.tell({"events": each, "seconds": seconds})
                    shapes[name].rates[each].append(
                        combined_rate([child.read() for child in children])
                    )
                held = (psutil.Process(child.pid).memory_full_info().pss for child in children)
                shapes[name].resident.append(sum(held))
    return shapes


def combined_rate(answers: Sequence[Mapping[str, float]]) -> float:
    """Return the events answered in a second by processes together, each by its own time."""
    return sum(answer["answered"] / answer["elapsed"] for answer in answers)


def instances_document(models: Mapping[str, Mapping[str, Shape]], instances: int) -> Document:
    """Return the comparison as JSON can hold it, by model: medians of the rounds."""
    return {
        "format": 1,
        "instances": instances,
        "models": {
            model: {
                name: {
                    "ready": statistics.median(shape.ready),
                    "resident": statistics.median(shape.resident),
                    "rates": {each: statistics.median(r) for each, r in shape.rates.items()},
                }
                for name, shape in shapes.items()
            }
            for model, shapes in models.items()
        },
    }


def instances_tables(run: Document) -> list[Table]:
    return [_table(model, shapes, run["instances"]) for model, shapes in run["models"].items()]


def _table(model: str, shapes: Document, instances: int) -> Table:
    (first, *_) = shapes.values()
    return Table(
        f"{instances} instances of {model}",
        ("", "ready s", "MB", *(f"events/s, {name}" for name in first["rates"])),
        [
            (
                name,
                f"{shape['ready']:.1f}",
                f"{shape['resident'] / 1e6:.0f}",
                *(f"{rate:.1f}" for rate in shape["rates"].values()),
            )
            for name, shape in shapes.items()
        ],
    )
