"""A job's command at a terminal, and what becomes of the server's log."""

import errno
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.commands import exec as module
from deploy.host.errors import LaunchError
from numl_job import command
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


def test_a_job_that_was_suspended_goes_on():
    """As ``scontrol suspend`` and a shell's Ctrl-Z do it."""
    words = [sys.executable, "-c", RUN]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as job:
        assert job.stdout.readline() == b"begun\n"
        for _ in range(3):
            time.sleep(0.1)
            job.send_signal(signal.SIGSTOP)
            time.sleep(2 * command._WATCH_S)
            job.send_signal(signal.SIGCONT)
        time.sleep(0.1)
        assert job.poll() is None
        job.send_signal(signal.SIGINT)
        assert job.stdout.read() == b"ended\n"
    assert job.returncode == 7


def test_a_server_that_does_not_end_when_it_is_asked_to_is_killed(monkeypatch):
    monkeypatch.setattr(command, "_GRACE_S", 1)
    with command.Remains() as remains:
        deaf = subprocess.Popen(
            ["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"],
            stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        deaf.stdout.readline()
        remains.add_server(deaf.pid)
    assert deaf.wait() == -signal.SIGKILL
    assert not remains.folder.exists()


@pytest.fixture
def stopped(monkeypatch, tmp_path):
    """Whether the server, which is played, was stopped; its log is there."""
    log = tmp_path / "server.log"
    log.write_text("ready\n")
    state = SimpleNamespace(log=str(log), url=lambda _: "grpc://127.0.0.1:1")
    done: list[object] = []
    engine = SimpleNamespace(stop=lambda *_: done.append(True))
    for name, value in {
        "load_deployment": None, "fetch_triton": None, "check_given": (), "chosen": (engine, None),
        "launch": state,
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr(module.Resolved, "of", lambda _: SimpleNamespace(deployment=None))
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    yield done
    for each, handler in handlers.items():
        signal.signal(each, handler)


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


def test_a_signal_while_the_server_is_stopped_leaves_the_commands_status(stopped, monkeypatch):
    monkeypatch.setattr(module, "forget_everything", lambda _: signal.raise_signal(signal.SIGTERM))
    assert module.main(["--", "sh", "-c", "exit 7"]) == 7


@pytest.fixture
def failing(stopped, monkeypatch, tmp_path):
    """A server that does not start, as an engine leaves it; where its deployments' folders are."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def launch(_engine, folder, *_, **__):
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.log.write_text("why it failed\n")
        raise LaunchError("the server failed", f"read its log: {folder.log}")

    monkeypatch.setattr(module, "launch", launch)
    return tmp_path / "numlkit" / "deployments"


def test_the_log_of_a_server_that_does_not_start_is_kept(failing, tmp_path, capfd):
    log = tmp_path / "kept.log"
    assert module.main(["--log", str(log), "--", "true"]) == 125
    assert log.read_text() == "why it failed\n"
    assert capfd.readouterr().err == f"error: the server failed\n  try: read its log: {log}\n"
    assert not list(failing.iterdir())


def test_without_a_file_for_it_the_log_stays_where_the_error_says(failing, capfd):
    assert module.main(["--", "true"]) == 125
    [folder] = failing.iterdir()
    assert (folder / "server.log").read_text() == "why it failed\n"
    assert f"read its log: {folder}/server.log\n" in capfd.readouterr().err


def test_a_file_for_the_log_that_cannot_be_written_leaves_it_where_it_is(failing, tmp_path, capfd):
    assert module.main(["--log", str(tmp_path), "--", "true"]) == 125
    [folder] = failing.iterdir()
    said = capfd.readouterr().err
    assert f"error: --log {tmp_path}: Is a directory\n" in said
    assert f"read its log: {folder}/server.log\n" in said


def test_an_interrupted_start_leaves_nothing(failing, tmp_path, monkeypatch):
    def launch(_engine, folder, *_, **__):
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.log.write_text("starting\n")
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(module, "launch", launch)
    log = tmp_path / "kept.log"
    assert module.main(["--log", str(log), "--", "true"]) == 128 + signal.SIGTERM
    assert log.read_text() == "starting\n"
    assert not list(failing.iterdir())


def test_a_copy_of_the_fhicl_that_cannot_be_written_is_no_fault_of_the_command(
    stopped, monkeypatch, tmp_path, capfd
):
    fcl, folder = tmp_path / "job.fcl", tmp_path / "remains"
    fcl.write_text("physics.producers.ng.TritonConfig: {}\n")
    (folder / fcl.name).mkdir(parents=True)
    monkeypatch.setattr(command.tempfile, "mkdtemp", lambda **_: str(folder))
    assert module.main(["--fcl", str(fcl), "--", "cat", str(fcl)]) == 125
    assert capfd.readouterr().err == f"error: --fcl {folder}/job.fcl: Is a directory\n"
    assert stopped == [True]


def test_what_a_full_quota_stops_is_no_status_of_the_command_and_leaves_nothing(
    failing, monkeypatch, capfd
):
    def launch(_engine, folder, *_, **__):
        (folder.path / "model_repository").mkdir(parents=True)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/home/me/x")

    monkeypatch.setattr(module, "launch", launch)
    assert module.main(["--", "true"]) == 125
    assert capfd.readouterr().err.startswith("error: /home/me/x: Disk quota exceeded\n")
    assert not list(failing.iterdir())


def test_what_stops_a_start_before_there_is_a_folder_is_no_status_of_the_command(
    failing, monkeypatch, capfd
):
    def refused(_):
        raise LaunchError("no room")

    monkeypatch.setattr(module, "check_given", refused)
    assert module.main(["--", "true"]) == 125
    assert capfd.readouterr().err == "error: no room\n"


def test_without_a_temporary_folder_no_server_is_started(stopped, monkeypatch, capfd):
    def full(**_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    def launch(*_: object, **__: object) -> None:
        raise AssertionError("the server is started")

    monkeypatch.setattr(command.tempfile, "mkdtemp", full)
    monkeypatch.setattr(module, "launch", launch)
    assert module.main(["--", "true"]) == 125
    assert capfd.readouterr().err == "error: No usable temporary directory found in ['/tmp']\n"


def test_at_the_limit_of_processes_nothing_is_left(stopped, monkeypatch, tmp_path, capfd):
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(command.tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(command.subprocess, "Popen", refuse)
    assert module.main(["--", "true"]) == 125
    assert capfd.readouterr().err == "error: /bin/sh: Resource temporarily unavailable\n"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_what_removes_the_rest_outlives_a_signal_to_all_of_a_job():
    with command.Remains() as remains:
        remover = remains._remover
        until(lambda: ignores(remover.pid, signal.SIGTERM), "the signal is ignored")
        remover.terminate()
    assert (remover.returncode, remains.folder.exists()) == (0, False)


def ignores(process: int, number: int) -> bool:
    """Read proc_pid_status(5)."""
    [mask] = re.findall(r"SigIgn:\t(\w+)", Path(f"/proc/{process}/status").read_text())
    return bool(int(mask, 16) >> (number - 1) & 1)
