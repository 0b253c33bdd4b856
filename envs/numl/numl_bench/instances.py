"""One process with several model instances, each in its own thread.

``python -m numl_bench.instances EVENTS.npz DIR THREADS`` loads as many instances as there are
threads, has each answer every event, and says so in a line of JSON. Then each line
``{"events": SET, "seconds": S}`` of its input has all of them answer for that long, and is answered
with a line ``{"answered": EVENTS, "elapsed": S}``, or with ``{"error": TEXT}``, which is the last.
How Triton's Python backend serves is one thread in each of several processes; what is compared
with it is several in one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from numl_serving.errors import ServingError
from numl_serving.event import Event
from numl_serving.runtime import Runtime

from .events import Tensors, read_sets


@dataclass(frozen=True, slots=True)
class Turn:
    """Totals over all instances of the process.

    Attributes:
        answered: Events.
        elapsed: Seconds from when all began until the last of them had ended.
    """

    answered: int
    elapsed: float


def answer_for(runtimes: Sequence[Runtime], events: Sequence[Tensors], seconds: float) -> Turn:
    """Have every instance answer events in a thread of its own.

    None begins with another event after ``seconds``; the one that it is at is answered and counts,
    and so does its time.

    Raises:
        Exception: What an instance has raised; the others end with the event that they are at.
    """
    together = threading.Barrier(len(runtimes))
    failed = threading.Event()

    def work(runtime: Runtime) -> tuple[int, float, float]:
        together.wait()
        begun = time.perf_counter()
        answered = 0
        while not failed.is_set() and time.perf_counter() < begun + seconds:
            try:
                runtime.infer(Event.from_tensors(events[answered % len(events)]))
            except BaseException:
                failed.set()
                raise
            answered += 1
        return answered, begun, time.perf_counter()

    with ThreadPoolExecutor(len(runtimes)) as pool:
        working = [pool.submit(work, runtime) for runtime in runtimes]
    answered, begun, ended = zip(*(each.result() for each in working), strict=True)
    return Turn(sum(answered), max(ended) - min(begun))


def serve(
    runtimes: Sequence[Runtime],
    sets: Mapping[str, Sequence[Tensors]],
    commands: Iterable[str],
    answers: TextIO,
) -> int:
    """Answer every event once, say so, and then answer commands until there are no more.

    Returns:
        The exit code: 1 if an instance has failed, which is the last answer.
    """
    try:
        for events in sets.values():
            for tensors in events:
                for runtime in runtimes:
                    runtime.infer(Event.from_tensors(tensors))
        _answer(answers, {})
        for line in commands:
            asked = json.loads(line)
            turn = answer_for(runtimes, sets[asked["events"]], asked["seconds"])
            _answer(answers, asdict(turn))
    except Exception as error:  # a network may raise anything; the rate without it is no rate
        (reason, *_) = f"{type(error).__name__}: {error}".splitlines()
        _answer(answers, {"error": f"an instance cannot go on: {reason}"})
        return 1
    return 0


def _answer(answers: TextIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m numl_bench.instances", description=__doc__)
    parser.add_argument("events", type=Path, metavar="EVENTS.npz")
    parser.add_argument("model", type=Path, metavar="DIR")
    parser.add_argument("threads", type=int, metavar="THREADS")
    options = parser.parse_args(arguments)
    # Whatever libraries print goes to standard error: standard output is for answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        runtimes = [Runtime.load(options.model) for _ in range(options.threads)]
        sets = read_sets(options.events)
    except (ServingError, OSError) as error:
        _answer(answers, {"error": str(error)})
        return 1
    return serve(runtimes, sets, sys.stdin, answers)


if __name__ == "__main__":
    raise SystemExit(main())
