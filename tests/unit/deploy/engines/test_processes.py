"""Processes are ended, also where nobody asks for their exit status."""

import sys
import time
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from deploy.client.probe import Probe, SmokeResult
from deploy.engines import broken, server
from deploy.host.errors import LaunchError
from tests.plans import make_plan
from tests.programs import running

# Stands for a container's first process that does not reap its children.
NEGLIGENT = """
import subprocess, sys
child = subprocess.Popen(["/bin/sleep", "60"])
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_process_that_nobody_reaps_has_ended(monkeypatch):
    monkeypatch.setattr(server, "STOP_TIMEOUT_S", 2.0)
    with running(sys.executable, "-c", NEGLIGENT) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        server.end_process(child)
        assert child.status() == psutil.STATUS_ZOMBIE


def test_a_process_that_ignores_the_request_is_killed(monkeypatch):
    monkeypatch.setattr(server, "STOP_TIMEOUT_S", 0.5)
    with running("/bin/sh", "-c", "trap '' TERM; echo ready; read _") as stubborn:
        assert stubborn.stdout.readline() == "ready\n"
        server.end_process(psutil.Process(stubborn.pid))
        stubborn.wait(timeout=5)


class Ended(server.Server):
    """A server that is dead before it has said a word, as one whose .sif is damaged may be."""

    def stop(self) -> None:
        pass


class Slow(Ended):
    """A server that is ready, and whose model takes its time for an answer."""

    def alive(self) -> bool:
        return True


@dataclass(frozen=True)
class Ready(Probe):
    def server_ready(self) -> bool:
        return True

    answers_itself = server_ready


@pytest.fixture
def plan(tmp_path):
    return make_plan(tmp_path, engine="apptainer")


@pytest.fixture
def ended(plan):
    return Ended(plan, lambda **_: None)


def wait(started: server.Server, seconds: float = 60, **how: Any) -> None:
    """Wait until it is ready; of one that is dead, nothing is asked."""
    deadline = time.monotonic() + seconds
    probe = Ready("http://localhost")
    started.wait_ready(probe, {"m": None}, deadline=deadline, stopped=lambda: False, **how)


def failure(started: server.Server, seconds: float = 60, **how: Any) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        wait(started, seconds, **how)
    return caught.value


def test_a_server_that_ends_without_a_word_is_told_with_what_may_have_ended_it(ended):
    told = failure(ended)
    assert told.cause == "the server ended and logged nothing"
    assert "a damaged .sif" in (told.remedy or "")


def test_a_server_that_a_race_in_triton_has_ended_is_started_twice_more(ended):
    said = "terminate called after throwing an instance of 'boost::interprocess::lock_exception'\n"
    ended._plan.log.write_text(f"{said}Signal (6) received.\n")
    starts = []

    def await_it(server: Ended, patient: bool) -> None:
        starts.append(patient)
        wait(server, patient=patient)

    with pytest.raises(LaunchError, match="crashed on a lock in its shared memory"):
        server.start_until_ready(lambda: ended, await_it)
    assert starts == [False, True, True]


def test_what_a_broken_model_says_is_not_why_a_server_that_goes_on_without_it_has_ended(ended):
    said = "Failed to initialize Python stub: ModuleNotFoundError: No module named 'x'\n"
    ended._plan.log.write_text(said)
    assert isinstance(failure(ended, keep_going=True, patient=False), server.GivenUpError)
    assert not isinstance(failure(ended, keep_going=False, patient=False), server.GivenUpError)
    assert not isinstance(failure(ended, keep_going=True, patient=True), server.GivenUpError)


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_model_whose_first_answer_comes_late_is_given_more_time(plan, monkeypatch, keep_going):
    patience: list[float] = []

    def answer(probe: Probe, model: str, _golden: object) -> SmokeResult:
        patience.append(probe.timeout)
        late = probe.timeout < 40
        return SmokeResult(model, True, "no answer" if late else None, None, late=late)

    for module in (server, broken):
        monkeypatch.setattr(module, "smoke", answer)
    wait(Slow(plan, lambda **_: None), keep_going=keep_going)
    assert sorted(set(patience)) == [10, 20, 40]


def test_a_model_that_never_answers_is_told_at_the_deadline(plan, monkeypatch):
    def answer(_probe: Probe, model: str, _golden: object) -> SmokeResult:
        return SmokeResult(model, True, "no answer", None, late=True)

    monkeypatch.setattr(server, "smoke", answer)
    told = failure(Slow(plan, lambda **_: None), seconds=0.2)
    assert told.cause == "not ready in time (waited for m)"
