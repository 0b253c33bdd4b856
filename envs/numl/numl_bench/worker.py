"""The process in which the benchmark measures without a server: one core, one thread.

``python -m numl_bench.worker EVENTS.npz DIR NUGRAPH25`` loads a model by NuGraph's own code and by
ours, says so in a line of JSON, and then answers each line ``{"events": ..., "seconds": ...}`` with
a line of what it measured, until its input ends. NUGRAPH25 is where nugraph 25.4.0 is unpacked.
What it runs on is set from outside: affinity, and ``OMP_NUM_THREADS``.
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

from numl_formats.golden import disagreements

from .events import read_sets
from .measure import Path, Tensors, measure, warm
from .paths import GRADIENTS_OFF, reference_paths, serving_path


class Worker:
    """A model, and the events of a benchmark.

    Args:
        sets: Events by the name of their set.
        directory: The model folder.
        nugraph25: Where nugraph 25.4.0 is unpacked.

    Raises:
        ServingError: The model cannot be loaded.
        ImportError: Its reference cannot.
    """

    def __init__(
        self, sets: dict[str, list[Tensors]], directory: Folder, nugraph25: Folder
    ) -> None:
        self._sets = sets
        self._paths = [*reference_paths(directory, nugraph25), serving_path(directory)]
        self._rounds: dict[str, int] = {}

    def measure(self, events: str, seconds: float) -> dict[str, Any]:
        """Time all paths on a set of events; the first call also compares answers."""
        requests = self._sets[events]
        differences: list[str] = []
        if events not in self._rounds:
            warm(self._paths, requests)
            differences = _differences(self._paths, requests)
        before = self._rounds.get(events, 0)
        times = measure(self._paths, requests, seconds=seconds, first=before)
        self._rounds[events] = before + len(next(iter(times.values())))
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
        answer = worker.measure(command["events"], command["seconds"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m numl_bench.worker", description=__doc__)
    parser.add_argument("events", type=Folder, metavar="EVENTS.npz")
    parser.add_argument("model", type=Folder, metavar="DIR")
    parser.add_argument("nugraph25", type=Folder, metavar="NUGRAPH25")
    options = parser.parse_args(arguments)
    # Whatever libraries print goes to standard error: standard output is for answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        worker = Worker(read_sets(options.events), options.model, options.nugraph25)
    except (ServingError, OSError, ImportError) as error:
        answers.write(json.dumps({"error": str(error)}) + "\n")
        answers.flush()
        return 1
    answers.write(json.dumps({"facts": _facts()}) + "\n")
    answers.flush()
    serve(worker, sys.stdin, answers)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
