"""Several commands at once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.deployment.state import ProcessId
from deploy.host.paths import CHECKOUT
from tests.kit import SMALL, Kit, until
from tests.programs import run_program, write_program


def _start(kit: Kit, name: str) -> subprocess.Popen[str]:
    kit.names.append(name)
    return subprocess.Popen(
        [*kit.start, "--name", name, "--json", *SMALL],
        cwd=CHECKOUT,
        env=kit.variables,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_deployments_started_at_once_each_get_a_server_of_their_own(kit):
    starts = [_start(kit, name) for name in ("race-a", "race-b")]
    answers = [json.loads(start.communicate(timeout=180)[0]) for start in starts]
    assert all(answer["ok"] for answer in answers), answers
    assert set(answers[0]["ports"].values()).isdisjoint(answers[1]["ports"].values())
    for name in ("race-a", "race-b"):
        status = kit.json("status", "--name", name)
        assert status["ok"], status
        assert status["state"]["restarts"] == 0
        kit.end(name)


def test_two_starts_of_one_name_end_with_one_server(kit):
    starts = [_start(kit, "race-one") for _ in range(2)]
    answers = [json.loads(start.communicate(timeout=180)[0]) for start in starts]
    assert all(answer["ok"] for answer in answers), answers
    assert answers[0]["server"] == answers[1]["server"]
    kit.end("race-one")


def test_a_supervisor_killed_during_a_start_leaves_no_server(kit):
    start = _start(kit, "race-orphan")
    state = kit.state / "numlkit/deployments/race-orphan/state.json"

    def server_started() -> bool:
        return state.exists() and json.loads(state.read_text())["server"] is not None

    until(server_started, "the server's start")
    found = json.loads(state.read_text())
    os.kill(found["supervisor"]["pid"], signal.SIGKILL)
    answer = json.loads(start.communicate(timeout=120)[0])
    assert start.returncode == 1
    assert "supervisor" in answer["error"]
    assert ProcessId.model_validate(found["server"]).process() is None
    assert not state.exists()
    assert not kit.leftovers("race-orphan")


# Stands for the supervisor: ends itself, and the command that waits for it if told to, when it
# is about to write down what a condition names.
DYING_SUPERVISOR = """
import os, pathlib, runpy, signal, sys
from deploy.deployment.state import DeploymentFolder
write = DeploymentFolder.write_state
def write_or_die(folder, state):
    if {condition}:
        pathlib.Path({told!r}).write_text(state.model_dump_json())
        {also}
        os.kill(os.getpid(), signal.SIGKILL)
    write(folder, state)
DeploymentFolder.write_state = write_or_die
sys.argv = sys.argv[2:]
runpy.run_module("deploy.engines", run_name="__main__")
"""


def _start_and_die(
    kit: Kit, tmp_path: Path, name: str, condition: str, also: str = ""
) -> dict[str, Any]:
    """Start a deployment whose supervisor dies at ``condition``.

    Returns:
        The state that it was about to write.
    """
    told, script, python = (tmp_path / part for part in ("told.json", "dying.py", "python"))
    script.write_text(
        DYING_SUPERVISOR.format(condition=condition, told=str(told), also=also or "pass")
    )
    # Of what is started with this Python, only the supervisor is to die.
    write_program(
        python,
        f'if [ "$2" = deploy.engines ]; then exec {sys.executable} {script} "$@"; fi\n'
        f'exec {sys.executable} "$@"',
    )
    up = f"import sys; sys.executable = {str(python)!r}; "
    up += "from deploy.commands.up import main; sys.exit(main())"
    kit.names.append(name)
    command = [sys.executable, "-c", up, *kit.start[2:], "--name", name, "--json", *SMALL]
    done = run_program(command, cwd=CHECKOUT, env=kit.variables, timeout=120)
    assert done.returncode != 0
    found: dict[str, Any] = json.loads(told.read_text())
    return found


SCRATCH_IS_KNOWN = "state.scratch"
SERVER_IS_KNOWN = "state.server is not None"
UP_TOO = "os.kill(os.getppid(), signal.SIGKILL)"


@pytest.mark.alone  # whose folder it is cannot be told while others start servers
def test_a_supervisor_killed_before_it_recorded_the_scratch_folder_leaves_none(kit, tmp_path):
    told = _start_and_die(kit, tmp_path, "race-scratch", SCRATCH_IS_KNOWN)
    assert ProcessId.model_validate(told["server"]).process() is None
    assert not kit.leftovers("race-scratch", told["scratch"])


@pytest.mark.alone  # whose folder it is cannot be told while others start servers
def test_its_scratch_folder_is_removed_by_a_later_down_and_another_server_s_is_not(kit, tmp_path):
    told = _start_and_die(kit, tmp_path, "race-scratch", SCRATCH_IS_KNOWN, UP_TOO)
    os.kill(told["server"]["pid"], signal.SIGKILL)
    server = ProcessId.model_validate(told["server"])
    until(lambda: server.process() is None, "the server's end")
    assert [path for path in told["scratch"] if Path(path).exists()], "the test shows nothing"
    other = kit.up("race-other", *SMALL)
    assert other["scratch"]
    assert kit.down("race-scratch")["stopped"] == ["race-scratch"]
    assert not kit.leftovers("race-scratch", told["scratch"])
    assert all(Path(path).exists() for path in other["scratch"]), "a living server's folder"
    kit.down("race-other")
    assert not kit.leftovers("race-other", other["scratch"])


def test_a_deployment_of_the_same_name_in_another_state_folder_is_not_swept(kit, tmp_path):
    twin = Kit(tmp_path)
    mine = kit.up("race-twin", *SMALL)
    twins = twin.up("race-twin", *SMALL)
    regions = twin.leftovers("race-twin", twins["scratch"])
    assert len(regions) >= 2
    kit.down("race-twin")
    assert not kit.leftovers("race-twin", mine["scratch"])
    assert twin.leftovers("race-twin", twins["scratch"]) == regions
    assert twin.json("smoke", "--name", "race-twin")["ok"]
    twin.down("race-twin")
    assert not twin.leftovers("race-twin", twins["scratch"])


@pytest.mark.parametrize("also", ["", UP_TOO])
def test_a_supervisor_killed_before_it_recorded_its_server_leaves_none(kit, tmp_path, also):
    told = _start_and_die(kit, tmp_path, "race-server", SERVER_IS_KNOWN, also)
    if also:
        assert psutil.pid_exists(told["server"]["pid"]), "the test shows nothing"
        assert kit.down("race-server")["stopped"] == ["race-server"]
    assert ProcessId.model_validate(told["server"]).process() is None
    assert not kit.leftovers("race-server")
