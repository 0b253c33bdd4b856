"""Several commands at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil

from deploy.paths import CHECKOUT
from tests.integration.conftest import Kit, leftovers, until

SMALL = ("--models", "nugraph3", "--instances", "1")


def _start(kit: Kit, name: str) -> subprocess.Popen[str]:
    kit.names.append(name)
    return subprocess.Popen(
        [sys.executable, "deploy/up.py", "--name", name, "--json", *SMALL],
        cwd=CHECKOUT,
        env=kit.variables,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_deployments_started_at_once_each_get_a_server_of_their_own(kit: Kit) -> None:
    starts = [_start(kit, name) for name in ("race-a", "race-b")]
    answers = [json.loads(start.communicate(timeout=180)[0]) for start in starts]
    assert all(answer["ok"] for answer in answers), answers
    assert set(answers[0]["ports"].values()).isdisjoint(answers[1]["ports"].values())
    for name in ("race-a", "race-b"):
        status = kit.json("status", "--name", name)
        assert status["ok"], status
        assert status["state"]["restarts"] == 0
        kit.down(name)


def test_two_starts_of_one_name_end_with_one_server(kit: Kit) -> None:
    starts = [_start(kit, "race-one") for _ in range(2)]
    answers = [json.loads(start.communicate(timeout=180)[0]) for start in starts]
    assert all(answer["ok"] for answer in answers), answers
    assert answers[0]["server"] == answers[1]["server"]
    kit.down("race-one")


def test_a_supervisor_killed_during_a_start_leaves_no_server(kit: Kit) -> None:
    start = _start(kit, "race-orphan")
    state = kit.state / "numlkit/deployments/race-orphan/state.json"

    def server_started() -> bool:
        return state.exists() and json.loads(state.read_text())["server"] is not None

    until(server_started, 60, "the server's start")
    found = json.loads(state.read_text())
    os.kill(found["supervisor"]["pid"], signal.SIGKILL)
    answer = json.loads(start.communicate(timeout=120)[0])
    assert start.returncode == 1
    assert "supervisor" in answer["error"]
    assert not psutil.pid_exists(found["server"]["pid"])
    assert not state.exists()
    assert not leftovers("race-orphan")
