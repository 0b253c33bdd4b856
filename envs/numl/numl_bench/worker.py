"""The process in which the benchmark measures without a server: one core, one thread.

``python -m numl_bench.worker EVENTS.npz MODEL=DIR ...`` loads the models by NuGraph's own code and
by ours, says so in a line of JSON, and then answers each line
``{"model": ..., "events": ..., "seconds": ...}`` with a line of what it measured, until its input
ends. What it runs on is set from outside: affinity, and ``OMP_NUM_THREADS``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path as Folder
from typing import Any, TextIO

import torch
from numl_serving.errors import ServingError
from numl_serving.golden import disagreements

from .events import Tensors, read_sets
from .measure import Path, measure, warm
from .paths import GRADIENTS_OFF, reference_paths, serving_path
from .reference import describe


class Worker:
    """The models and events of a benchmark.

    Args:
        sets: Events by the name of their set.
    """

    def __init__(self, sets: dict[str, list[Tensors]]) -> None:
        self._sets = sets
        self._paths: dict[str, list[Path]] = {}
        self._rounds: dict[tuple[str, str], int] = {}

    def load(self, model: str, directory: Folder) -> dict[str, Any]:
        """Load a model; returns what it is.

        Raises:
            ServingError: It cannot be loaded.
        """
        self._paths[model] = [*reference_paths(directory), serving_path(directory)]
        return {"network": describe(directory)}

    def measure(self, model: str, events: str, seconds: float) -> dict[str, Any]:
        """Time all paths of a model on a set of events; the first call also compares answers."""
        paths, requests = self._paths[model], self._sets[events]
        differences: list[str] = []
        if (model, events) not in self._rounds:
            warm(paths, requests)
            differences = _differences(paths, requests)
        before = self._rounds.get((model, events), 0)
        times = measure(paths, requests, seconds=seconds, first=before)
        self._rounds[model, events] = before + len(next(iter(times.values())))
        return {"times": times, "differences": differences}


def _differences(paths: Sequence[Path], requests: Sequence[Tensors]) -> list[str]:
    (reference,) = (path for path in paths if path.name == GRADIENTS_OFF)
    found = []
    for number, tensors in enumerate(requests):
        expected = reference.answer(tensors).outputs
        for path in paths:
            for fault in disagreements(expected, path.answer(tensors).outputs):
                found.append(f"event {number}, {path.name}: {fault}")
    return found


def _facts() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def serve(worker: Worker, commands: TextIO, answers: TextIO) -> None:
    """Answer commands, one per line, until the input ends."""
    for line in commands:
        command = json.loads(line)
        answer = worker.measure(command["model"], command["events"], command["seconds"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m numl_bench.worker", description=__doc__)
    parser.add_argument("events", type=Folder, metavar="EVENTS.npz")
    parser.add_argument("models", nargs="+", metavar="MODEL=DIR")
    options = parser.parse_args(arguments)
    # Whatever libraries print goes to standard error: standard output is for answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(read_sets(options.events))
    models = {}
    try:
        for assignment in options.models:
            name, _, directory = assignment.partition("=")
            models[name] = worker.load(name, Folder(directory))
    except (ServingError, OSError) as error:
        answers.write(json.dumps({"error": str(error)}) + "\n")
        answers.flush()
        return 1
    answers.write(json.dumps({"models": models, "facts": _facts()}) + "\n")
    answers.flush()
    serve(worker, sys.stdin, answers)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
