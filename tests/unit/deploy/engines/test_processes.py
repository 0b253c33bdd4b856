"""Processes are ended, also where nobody asks for their exit status."""

import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from deploy.deployment.deployment import Deployment, Ports
from deploy.deployment.plan import LaunchPlan
from deploy.engines import server
from deploy.host.errors import LaunchError

# Stands for a container's first process that does not reap its children.
NEGLIGENT = """
import subprocess, time
child = subprocess.Popen([{sleeper!r}, "60"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_process_that_nobody_reaps_has_ended(monkeypatch):
    monkeypatch.setattr(server, "STOP_TIMEOUT_S", 2.0)
    parent = subprocess.Popen(
        [sys.executable, "-c", NEGLIGENT.format(sleeper="/bin/sleep")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    try:
        child = psutil.Process(int(parent.stdout.readline()))
        server.end_process(child)
        assert child.status() == psutil.STATUS_ZOMBIE
    finally:
        parent.kill()
        parent.communicate()


def test_a_process_that_ignores_the_request_is_killed(monkeypatch):
    monkeypatch.setattr(server, "STOP_TIMEOUT_S", 0.5)
    script = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    stubborn = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert stubborn.stdout is not None
    assert stubborn.stdout.readline() == "ready\n"
    server.end_process(psutil.Process(stubborn.pid))
    stubborn.communicate(timeout=5)


class Ended(server.Server):
    """A server that is dead before it has said a word, as one whose .sif is damaged may be."""

    def stop(self) -> None:
        pass


@pytest.fixture
def ended(tmp_path):
    plan = LaunchPlan(
        deployment=Deployment(), engine="apptainer", ports=Ports(), arguments=(), variables={},
        repository=tmp_path, instances={}, shm_prefix="", identity="", artefact="",
        log=tmp_path / "server.log",
    )  # fmt: skip
    return Ended(plan, lambda **_: None)


def failure(ended: Ended, **how: Any) -> LaunchError:
    probe: Any = None
    deadline = time.monotonic() + 60
    with pytest.raises(LaunchError) as caught:
        ended.wait_ready(probe, {"m": None}, deadline=deadline, stopped=lambda: False, **how)
    return caught.value


def test_a_server_that_ends_without_a_word_is_told_with_what_may_have_ended_it(ended):
    told = failure(ended)
    assert told.cause == "the server ended and logged nothing"
    assert "a damaged .sif" in (told.remedy or "")


def test_what_a_broken_model_says_is_not_why_a_server_that_goes_on_without_it_has_ended(ended):
    said = "Failed to initialize Python stub: ModuleNotFoundError: No module named 'x'\n"
    ended._plan.log.write_text(said)
    assert isinstance(failure(ended, keep_going=True, patient=False), server.GivenUpError)
    assert not isinstance(failure(ended, keep_going=False, patient=False), server.GivenUpError)
    assert not isinstance(failure(ended, keep_going=True, patient=True), server.GivenUpError)
