"""Instances in threads of one process: when they stop, what counts, and what ends them.

The runtimes are fakes: no real one fails, or takes its time, when a test wants it to.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Sequence

import pytest
from numl_bench.events import Tensors, events_of_size
from numl_bench.instances import answer_for, serve
from numl_serving.event import Event

EVENTS = events_of_size(100, 2, seed=1)


class Fake:
    """A runtime that takes a while, and fails after so many events."""

    def __init__(self, seconds: float = 0.0, fails_after: int = 1000) -> None:
        self.seconds, self.fails_after = seconds, fails_after
        self.threads: list[int] = []

    def infer(self, event: Event) -> None:
        if len(self.threads) == self.fails_after:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied\nand more")
        self.threads.append(threading.get_ident())
        time.sleep(self.seconds)


def test_an_event_that_ends_after_the_deadline_counts_with_its_time_and_is_the_last() -> None:
    slow, slower = Fake(seconds=0.05), Fake(seconds=0.1)
    turn = answer_for([slow, slower], EVENTS, 0.001)
    assert turn.answered == 2
    assert turn.elapsed >= 0.1


def test_every_instance_answers_in_a_thread_of_its_own_until_the_time_has_passed() -> None:
    instances = [Fake(seconds=0.001) for _ in range(3)]
    turn = answer_for(instances, EVENTS, 0.1)
    assert turn.answered == sum(len(instance.threads) for instance in instances)
    assert turn.elapsed >= 0.1
    assert all(len(set(instance.threads)) == 1 for instance in instances)
    assert len({instance.threads[0] for instance in instances}) == 3


def test_an_instance_that_fails_ends_the_turn_of_all() -> None:
    failing, steady = Fake(fails_after=3), Fake(seconds=0.01, fails_after=10**6)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        answer_for([steady, failing], EVENTS, 20)
    assert time.monotonic() - begun < 20, "the others do not go on to the deadline"


def commands(count: int) -> io.StringIO:
    return io.StringIO('{"events": "100 hits", "seconds": 0.01}\n' * count)


def served(instances: Sequence[Fake], sets: dict[str, list[Tensors]]) -> tuple[int, list[object]]:
    answers = io.StringIO()
    code = serve(instances, sets, commands(2), answers)
    return code, [json.loads(line) for line in answers.getvalue().splitlines()]


def test_each_command_is_answered_with_what_was_done_and_how_long_it_took() -> None:
    instances = [Fake(seconds=0.001), Fake(seconds=0.001)]
    code, (ready, *turns) = served(instances, {"100 hits": EVENTS})
    assert (code, ready) == (0, {})
    assert [set(turn) for turn in turns] == [{"answered", "elapsed"}] * 2
    warm_up = len(EVENTS) * len(instances)
    answered = sum(len(instance.threads) for instance in instances)
    assert sum(turn["answered"] for turn in turns) == answered - warm_up


ERROR = {
    "error": "an instance cannot go on: RuntimeError: mat1 and mat2 shapes cannot be multiplied"
}


def test_an_instance_that_fails_in_a_turn_is_told_in_a_line_which_is_the_last() -> None:
    failing = Fake(fails_after=len(EVENTS))
    assert served([Fake(), failing], {"100 hits": EVENTS}) == (1, [{}, ERROR])


def test_an_instance_that_fails_at_its_first_event_is_never_ready() -> None:
    assert served([Fake(), Fake(fails_after=0)], {"100 hits": EVENTS}) == (1, [ERROR])
