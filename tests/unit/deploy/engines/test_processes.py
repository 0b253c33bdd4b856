"""Processes are ended, also where nobody asks for their exit status."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from deploy.engines import server

# Stands for a container's first process that does not reap its children.
NEGLIGENT = """
import subprocess, time
child = subprocess.Popen([{sleeper!r}, "60"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_process_that_nobody_reaps_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_process_that_ignores_the_request_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STOP_TIMEOUT_S", 0.5)
    script = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    stubborn = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert stubborn.stdout is not None
    assert stubborn.stdout.readline() == "ready\n"
    server.end_process(psutil.Process(stubborn.pid))
    stubborn.communicate(timeout=5)
