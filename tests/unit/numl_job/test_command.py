"""A job's command at a terminal, and what becomes of the server's log."""

from __future__ import annotations

import os
import pty
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.commands import exec as module
from tests.kit import until

RUN = """
import os
from numl_job.command import Remains, Signals
with Signals() as signals, Remains() as remains:
    words = ["sh", "-c", "trap 'echo ended; exit 7' INT; echo begun; while :; do sleep 0.1; done"]
    raise SystemExit(signals.run(words, os.environ, remains))
"""


@pytest.mark.parametrize("standard_input", ["terminal", "/dev/null"])
def test_ctrl_c_reaches_the_command_once_wherever_its_input_comes_from(standard_input):
    pid, terminal = pty.fork()
    if pid == 0:
        if standard_input != "terminal":
            os.dup2(os.open(standard_input, os.O_RDONLY), 0)
        os.execv(sys.executable, [sys.executable, "-c", RUN])
    os.set_blocking(terminal, False)
    said = b""

    def says(word: bytes) -> bool:
        nonlocal said
        with suppress(BlockingIOError, OSError):  # it has said nothing more, or its end is closed
            said += os.read(terminal, 1000)
        return word in said

    try:
        until(lambda: says(b"begun"), "the command")
        os.write(terminal, b"\x03")
        until(lambda: says(b"ended"), "its end")
    finally:
        # It ends by itself after the command; killed, it takes the command with it.
        if not says(b"ended"):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 7
    assert said.count(b"ended") == 1


@pytest.fixture
def stopped(monkeypatch, tmp_path):
    """Whether the server, which is played, was stopped; its log is there."""
    log = tmp_path / "server.log"
    log.write_text("ready\n")
    state = SimpleNamespace(log=str(log), url=lambda _: "grpc://127.0.0.1:1")
    done: list[object] = []
    for name, value in {
        "load_deployment": None, "fetch_triton": None, "check_given": (), "chosen": (None, None),
        "launch": state,
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr(module.Resolved, "of", lambda _: SimpleNamespace(deployment=None))
    monkeypatch.setattr(module, "_stop", lambda *_: done.append(True))
    return done


def test_the_servers_log_is_kept(stopped, tmp_path):
    assert module.main(["--log", str(tmp_path / "kept.log"), "--", "sh", "-c", "exit 7"]) == 7
    assert (tmp_path / "kept.log").read_text() == "ready\n"
    assert stopped == [True]


def test_a_log_that_cannot_be_kept_changes_neither_status_nor_clean_up(stopped, tmp_path, capfd):
    words = ["--log", str(tmp_path), "--", "sh", "-c", "exit 7"]
    assert module.main(words) == 7
    assert capfd.readouterr().err == f"error: --log {tmp_path}: Is a directory\n"
    assert stopped == [True]


def test_a_log_in_no_folder_is_refused_before_the_start(stopped, tmp_path, capfd):
    log: Path = tmp_path / "none" / "x.log"
    assert module.main(["--log", str(log), "--", "true"]) == 2
    assert capfd.readouterr().err == f"error: --log {log}: no such folder: {log.parent}\n"
    assert stopped == []
