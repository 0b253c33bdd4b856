"""What ``up`` does about a start that fails; a mock stands for the engine."""

import json
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import pytest

from deploy.commands import down, up
from deploy.commands.up import start
from deploy.deployment.deployment import Deployment, Ports
from deploy.deployment.state import DeploymentFolder
from deploy.host.errors import LaunchError
from deploy.host.failures import diagnose
from deploy.host.paths import CHECKOUT

PORT = diagnose(
    "E1121 main.cc] failed to start GRPC service: Unavailable - "
    "Socket '127.0.0.1:8001' already in use "
)
OTHER = LaunchError("the server ended")


def started(*outcomes: LaunchError | str, **settings: Any) -> tuple[int, list[str]]:
    """Return how often a server was started whose starts end so, and what was said."""
    engine, said = Mock(deployment=Deployment(**settings)), list[str]()
    engine.launch.side_effect = outcomes
    try:
        assert start(engine, said.append) == "ready"
    except LaunchError as error:
        said.append(f"failed: {error.cause}")
    return engine.launch.call_count, said


def test_ports_that_were_found_are_looked_for_anew_when_they_are_lost():
    assert started(PORT, PORT, "ready") == (3, [f"{PORT.cause}; starting again"] * 2)
    assert started(*[PORT] * 4, "ready")[0] == 4


@pytest.mark.parametrize(("outcome", "settings"), [(OTHER, {}), (PORT, {"ports": Ports()})])
def test_nothing_else_is_tried_again(outcome, settings):
    assert started(outcome, "ready", **settings) == (1, [f"failed: {outcome.cause}"])


@pytest.mark.parametrize("there", [0, 1])
def test_a_farm_of_which_no_server_is_there_in_time_is_no_success(there, home, monkeypatch, capsys):
    monkeypatch.setattr(up, "start_farm", lambda farm: farm)
    monkeypatch.setattr(up, "await_servers", lambda *_, **__: there)
    status = up.main(["--engine", "slurm", "--servers", "2", "--listen", "0.0.0.0", "--json"])
    assert (status, json.loads(capsys.readouterr().out)["ok"]) == (1 - there, there > 0)


_STARTS = """
import signal, sys, time
from pathlib import Path
from deploy.deployment.state import DeploymentFolder
from deploy.host.cli import end_in_order
end_in_order(signal.SIGTERM)
folder = DeploymentFolder("early")
try:
    with folder.starting():
        print("starting", flush=True)
        time.sleep(600)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("flags", [["--name", "early"], ["--all"]])
def test_down_ends_a_start_that_has_made_nothing_yet(flags, home, capsys):
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS], stdout=subprocess.PIPE, cwd=CHECKOUT, text=True
    ) as starter:
        assert starter.stdout.readline() == "starting\n"
        assert down.main([*flags, "--json"]) == 0
    assert starter.returncode == 130
    assert json.loads(capsys.readouterr().out)["stopped"] == ["early"]
    assert not DeploymentFolder("early").path.exists()
