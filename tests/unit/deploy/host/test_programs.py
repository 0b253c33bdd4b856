"""Programs that a build runs: their reasons in one line, and no survivors."""

import errno
import os
import signal
import socket
import subprocess
import sys
from unittest.mock import Mock

import psutil
import pytest

from deploy.host.errors import BuildError
from deploy.host.paths import CHECKOUT
from deploy.host.programs import run, run_pip
from tests.kit import SOON_S, until
from tests.unit.deploy.environment.wheels import make_wheel


@pytest.mark.parametrize("pipes", ["large", "small"])
def test_what_it_reads_is_given_in_pieces_and_what_it_writes_is_returned(monkeypatch, pipes):
    if pipes == "small":  # played, as the system lets root have large ones
        refused = Mock(side_effect=PermissionError(errno.EPERM, os.strerror(errno.EPERM)))
        monkeypatch.setattr("deploy.host.programs.fcntl.fcntl", refused)
    assert run(["cat"], failed="no cat", stdin=[b"one ", memoryview(b"two")]) == "one two"


def test_lines_are_told_as_they_come():
    told: list[str] = []
    run(["sh", "-c", "echo one; echo two"], failed="no shell", line=told.append)
    assert told == ["one\n", "two\n"]


def test_a_program_that_stops_reading_gives_its_own_reason():
    with pytest.raises(BuildError, match=r"^cannot write it: disk is tired$"):
        run(
            ["sh", "-c", "echo disk is tired >&2; exit 3"],
            failed="cannot write it",
            stdin=(bytes(1 << 20) for _ in range(50)),
        )


def test_a_program_without_a_word_is_given_by_its_status():
    with pytest.raises(BuildError, match=r"^cannot write it: exit status 3$"):
        run(["sh", "-c", "exit 3"], failed="cannot write it")


def test_an_interrupted_run_ends_the_program_and_its_children(tmp_path):
    # It has come as far as to wait for the program when it hears from it.
    script = (
        "from deploy.host.programs import run\n"
        f"said = open('{tmp_path}/child', 'w', buffering=1)\n"
        "run(['sh', '-c', 'sleep 300 & echo $!; wait'], failed='', line=said.write)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=CHECKOUT, stderr=subprocess.DEVNULL
    )
    child = tmp_path / "child"
    until(lambda: child.exists() and bool(child.read_text().strip()), "the program's child")
    process.send_signal(signal.SIGINT)
    process.wait(SOON_S)

    def dead() -> bool:
        # Even if nobody has asked for its status yet. A busy host kills a moment later.
        try:
            return psutil.Process(int(child.read_text())).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    until(dead, "the end of the program's child")


def test_a_terminated_command_leaves_no_program_running(tmp_path):
    """Here ``numlkit lock`` and its pip, which waits for an index that never answers."""
    (tmp_path / "requirements.in").write_text("vision\n")
    with socket.create_server(("127.0.0.1", 0)) as index:
        index.settimeout(SOON_S)
        url = f"http://127.0.0.1:{index.getsockname()[1]}/simple"
        settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": url, "no_proxy": "127.0.0.1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "deploy.main", "lock", str(tmp_path)], cwd=CHECKOUT,
            env={**os.environ, **settings}, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        asking, _ = index.accept()
        with asking:
            asking.settimeout(SOON_S)
            assert asking.recv(1 << 16)
            process.send_signal(signal.SIGTERM)
            assert process.wait(SOON_S) == 128 + signal.SIGTERM
            assert asking.recv(1 << 16) == b"", "pip has ended"
    with process.stderr as said:
        assert "error: interrupted\n" in said.read()


def test_what_a_user_has_pip_do_for_them_does_not_change_the_kits_environments(
    tmp_path, monkeypatch
):
    """Many clusters set these, so that a login node's Python stays as it is."""
    for variable in ("PIP_USER", "PIP_REQUIRE_VIRTUALENV"):
        monkeypatch.setenv(variable, "1")
    wheel = make_wheel(tmp_path, "thing-1-py3-none-any.whl")
    command = ["--python", sys._base_executable, "install", "--no-index", "--no-deps"]
    command += ["--target", str(tmp_path / "there"), str(wheel)]
    run_pip(command, "not installed", scratch=tmp_path)
    assert (tmp_path / "there" / "thing" / "__init__.py").exists()
