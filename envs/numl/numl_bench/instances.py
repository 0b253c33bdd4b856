"""One process with several model instances, each answering in a thread of its own.

``python -m numl_bench.instances EVENTS.npz DIR THREADS [--compiled FOLDER]`` loads as many
instances as there are threads, has each answer every event, and says so in a line of JSON. Then
each line ``{"events": SET, "seconds": S}`` of its input has all of them answer for that long, and
is answered with a line of how many events that were. How Triton's Python backend serves is one
thread in each of several processes; what is compared with it is several in one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from numl_serving.event import Event
from numl_serving.runtime import Runtime

from .events import Tensors, read_sets


def answer_for(runtimes: Sequence[Runtime], events: Sequence[Tensors], seconds: float) -> int:
    """Have every instance answer events in a thread of its own; returns how many were answered."""
    counts = [0] * len(runtimes)
    together = threading.Barrier(len(runtimes))

    def work(number: int) -> None:
        together.wait()
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            tensors = events[counts[number] % len(events)]
            runtimes[number].infer_batch([Event.from_tensors(tensors)])
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(runtimes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m numl_bench.instances", description=__doc__)
    parser.add_argument("events", type=Path, metavar="EVENTS.npz")
    parser.add_argument("model", type=Path, metavar="DIR")
    parser.add_argument("threads", type=int, metavar="THREADS")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    # Whatever libraries print goes to standard error: standard output is for answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    compiled = None if options.compiled is None else str(options.compiled)
    runtimes = [Runtime.load(options.model, compiled=compiled) for _ in range(options.threads)]
    sets = read_sets(options.events)
    for events in sets.values():
        for tensors in events:
            for runtime in runtimes:
                runtime.infer_batch([Event.from_tensors(tensors)])
    answers.write("{}\n")
    answers.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        answered = answer_for(runtimes, sets[asked["events"]], asked["seconds"])
        answers.write(json.dumps({"answered": answered}) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
