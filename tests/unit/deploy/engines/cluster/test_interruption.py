"""What is left of a rollout whose command is interrupted or told to end."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest

from deploy.deployment.state import DeploymentFolder
from deploy.engines import rollout
from deploy.host.paths import CHECKOUT
from tests.kit import until
from tests.unit.deploy.engines.cluster.terminal import IMAGE, Terminal, waiting

ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def start_up(terminal: Terminal, words: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "deploy/up.py", "--engine", "kubernetes", *words.split()],
        cwd=CHECKOUT,
        env={**os.environ, "KUBECONFIG": str(terminal.folder / "kubeconfig")},
        stderr=subprocess.PIPE,
        text=True,
    )


def end_up(terminal: Terminal, number: signal.Signals, words: str = "") -> tuple[int, str]:
    """Type ``up`` for pods that never become ready, and end it; return its status and errors."""
    terminal.cluster.pod = waiting("ContainerCreating", "pulling")
    before = len(terminal.cluster.of_kind("Pod"))
    up = start_up(terminal, words)
    until(lambda: len(terminal.cluster.of_kind("Pod")) > before, 120, "a pod")
    up.send_signal(number)
    said = up.communicate(timeout=120)[1]
    return up.returncode, said


@pytest.mark.slow
@pytest.mark.parametrize("number", ENDING)
def test_a_first_launch_takes_down_what_it_has_made(
    number: signal.Signals, terminal: Terminal
) -> None:
    code, said = end_up(terminal, number)
    assert (code, said.splitlines()[-2:]) == (
        130,
        ["error: interrupted", "  try: run the command again"],
    )
    assert "removing what was created" in said
    assert terminal.cluster.names() == set()
    assert not DeploymentFolder("numl").path.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", ENDING)
def test_an_upgrade_goes_on_and_the_way_back_is_named(
    number: signal.Signals, terminal: Terminal
) -> None:
    assert terminal.type(f"up --engine kubernetes --image {IMAGE}")[0] == 0
    before = terminal.cluster.names()
    code, said = end_up(terminal, number, "--image registry.example.org/lab/numl:new")
    *_, cause, remedy = said.splitlines()
    assert (code, cause) == (1, "error: interrupted: the cluster continues the upgrade")
    assert "deploy/status.py --name numl shows its progress" in remedy
    assert f"run up with the previous settings (--image {IMAGE})" in remedy
    assert terminal.cluster.names() == before
    assert [pod["ready"] for pod in terminal.json("status")["pods"]].count(True) == 1


@pytest.mark.slow
def test_a_first_launch_whose_terminal_is_closed_takes_down_what_it_has_made(
    terminal: Terminal,
) -> None:
    terminal.cluster.pod = waiting("ContainerCreating", "pulling")
    process, screen = pty.fork()
    if not process:
        variables = {**os.environ, "KUBECONFIG": str(terminal.folder / "kubeconfig")}
        words = [sys.executable, str(CHECKOUT / "deploy/up.py"), "--engine", "kubernetes"]
        os.execve(sys.executable, words, variables)
    until(lambda: terminal.cluster.of_kind("Pod") != {}, 120, "a pod")
    os.close(screen)
    until(lambda: os.waitpid(process, os.WNOHANG)[0] == process, 120, "the end of up")
    assert terminal.cluster.names() == set()
    assert not DeploymentFolder("numl").path.exists()


@pytest.mark.slow
def test_a_first_launch_that_nobody_reads_any_more_takes_down_what_it_has_made(
    terminal: Terminal,
) -> None:
    # Ctrl-C ends what `numlkit up 2>&1 | tee log` writes to, too.
    terminal.cluster.pod = waiting("ContainerCreating", "pulling")
    up = start_up(terminal)
    until(lambda: terminal.cluster.of_kind("Pod") != {}, 120, "a pod")
    assert up.stderr is not None
    up.stderr.close()
    up.send_signal(signal.SIGINT)
    assert up.wait(120) == 130
    assert terminal.cluster.names() == set()
    assert not DeploymentFolder("numl").path.exists()


@pytest.mark.slow
def test_what_a_killed_command_has_made_is_known_to_status_and_down(terminal: Terminal) -> None:
    code, _ = end_up(terminal, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert "0 of 1 pods of the server are ready" in terminal.type("status")[1]
    assert terminal.json("down")["stopped"] == ["numl"]
    assert terminal.cluster.names() == set()


def test_who_interrupts_the_removal_too_is_told_what_removes_the_rest(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rollout.Rollout, "wait", interrupt)
        patch.setattr(rollout.Rollout, "remove", interrupt)
        code, _, err = terminal.type("up --engine kubernetes")
    *_, cause, remedy = err.splitlines()
    assert (code, cause) == (
        1,
        "error: interrupted: what was created is still in namespace physics of site",
    )
    assert remedy == "  try: numlkit down --name numl"
    assert terminal.json("down")["stopped"] == ["numl"]
    assert terminal.cluster.names() == set()


def test_a_launch_elsewhere_that_fails_leaves_the_name_to_what_runs(terminal: Terminal) -> None:
    assert terminal.type("up --engine kubernetes")[0] == 0
    place = "/api/v1/namespaces/other"
    terminal.cluster.objects[place] = {"kind": "Namespace", "metadata": {"name": "other"}}
    terminal.cluster.pod = waiting("ImagePullBackOff", "not found")
    assert terminal.type("up --engine kubernetes --namespace other")[0] == 1
    assert terminal.type("status")[1].startswith("deployment numl: healthy")
