"""``exec`` of an image, as the one file that the image has; a stand-in plays image and Triton."""

import errno
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest

from deploy.artefacts.context import write_program
from numl_job import image as module
from tests.kit import SOON_S, until

HERE = Path(__file__).parent
SHOW = 'import os; print(os.environ["NUML_GRPC_URL"], os.environ["NUML_HTTP_URL"])'
ASK = "import os, urllib.request as r; print(r.urlopen(os.environ['NUML_HTTP_URL'] + '/v2').read())"


class Image:
    """A folder that stands for an image, and the program beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tmp = folder / "image", folder / "tmp"
        self.folder.mkdir()
        self.tmp.mkdir()
        self.program = folder / "exec"
        write_program(self.program)
        self.begun: list[subprocess.Popen[str]] = []

    def begin(
        self, *words: str, ignored: int | None = None, stdin: int | None = None, **variables: str
    ) -> subprocess.Popen[str]:
        """Start it, by a parent that ignores a signal if one is given."""
        path = f"{HERE}:{os.environ['PATH']}"
        ignore = None if ignored is None else partial(signal.signal, ignored, signal.SIG_IGN)
        process = subprocess.Popen(
            [sys.executable, "-IB", self.program, "--image", self.folder, *words],
            env={**os.environ, "PATH": path, "TMPDIR": str(self.tmp), **variables},
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=ignore,
        )  # fmt: skip
        self.begun.append(process)
        return process

    def hear(self, *words: str, ignored: int | None = None) -> tuple[subprocess.Popen[str], str]:
        """Start it; return it with the first line that its command says."""
        process = self.begin("--", *words, ignored=ignored)
        return process, process.stdout.readline()

    def run(
        self, *words: str, ignored: int | None = None, **variables: str
    ) -> tuple[int, str, str]:
        process = self.begin(*words, ignored=ignored, **variables)
        out, err = process.communicate(timeout=SOON_S)
        return process.returncode, out, err

    def starts(self) -> list[tuple[int, int]]:
        """Return process and port of each start of a server."""
        noted = self.folder / "started"
        lines = noted.read_text().splitlines() if noted.exists() else []
        return [(int(pid), int(port)) for pid, port in map(str.split, lines)]

    def is_stopping(self) -> bool:
        return (self.folder / "stopped").exists()

    def is_clean(self) -> bool:
        alive = [pid for pid, _ in self.starts() if psutil.pid_exists(pid)]
        return not alive and not list(self.tmp.iterdir())


@pytest.fixture
def image(tmp_path):
    image = Image(tmp_path)
    yield image
    for process in image.begun:
        process.kill()
        process.communicate()


def test_the_command_is_told_where_its_server_is_and_nothing_is_left(image):
    status, out, err = image.run("--", sys.executable, "-c", f"{ASK}; raise SystemExit(7)")
    assert (status, err) == (7, "")
    assert "numl-job-" in out
    assert image.is_clean()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("broken", "exec: the server is not usable: it exited with status 1; its log: "
         "E1124 failed to load 'nugraph3' version 1: no module named x\n"),
        ("wrong", "exec: the server is not usable: unhealthy: nugraph3: wrong answer\n"),
        ("silent", "exec: the server is not usable: not ready in time (--timeout)\n"),
    ],
)  # fmt: skip
def test_a_server_that_does_not_become_ready_is_one_line(image, fault, said):
    (image.folder / fault).touch()
    # A host may be slow: only what never ends ends by its timeout.
    timeout = "2" if fault == "silent" else "120"
    assert image.run("--timeout", timeout, "--", "true") == (125, "", said)
    assert image.is_clean()


def test_a_port_that_is_lost_to_another_program_costs_a_second_start(image):
    (image.folder / "taken").touch()
    assert image.run("--", "true") == (0, "", "")
    (_, first), (_, second) = image.starts()
    assert first != second


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "no command given"),
        (["--fcl", "none.fcl", "--", "lar", "-c", "none.fcl"], 2, "No such file"),
        (["--producer", "x", "--", "true"], 2, "--producer needs --fcl"),
        (["--log", "/no/such/x.log", "--", "true"], 2, "x.log: no such folder: /no/such"),
        (["--log", "/", "--", "true"], 125, "exec: --log /: Is a directory"),
        (["--", "/no/such/command"], 127, "/no/such/command: No such file or directory"),
        (["--", "/etc"], 126, "/etc: Permission denied"),
    ],
)
def test_what_cannot_be_run_is_refused(image, words, status, said):
    got, _, err = image.run(*words)
    assert got == status
    assert said in err.splitlines()[-1]
    assert image.is_clean()


def test_a_node_without_apptainer_is_told_and_not_taken_for_a_command_that_is_missing(
    image, tmp_path
):
    (tmp_path / "bin").mkdir()
    for name in ("rm", "sleep"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    said = "exec: apptainer: No such file or directory\n"
    assert image.run("--cpu", "--", "true", PATH=f"{tmp_path}/bin") == (125, "", said)
    assert image.is_clean()


def test_a_server_that_cannot_be_started_in_the_image_is_told(monkeypatch, capsys, tmp_path):
    (tmp_path / "serve").touch()  # not executable
    monkeypatch.setattr(module, "_BIN", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["exec", "--", "true"])
    assert module.main() == 125
    assert capsys.readouterr().err == f"exec: {tmp_path}/serve: Permission denied\n"


def test_without_a_temporary_folder_it_is_told_and_nothing_is_started(image, monkeypatch, capsys):
    def full(**_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    monkeypatch.setattr(sys, "argv", ["exec", "--image", str(image.folder), "--", "true"])
    assert module.main() == 125
    said = "exec: No usable temporary directory found in ['/tmp']\n"
    assert (capsys.readouterr().err, image.starts()) == (said, [])


@pytest.mark.parametrize(
    ("flags", "driver", "given"),
    [
        ([], True, ["--nv"]),
        ([], False, []),
        (["--gpu"], False, ["--nv"]),
        (["--cpu"], True, []),
    ],
)
def test_the_image_is_given_the_nodes_gpus_unless_cpus_are_asked_for(
    flags, driver, given, monkeypatch, tmp_path
):
    monkeypatch.setattr(module, "_DRIVER", tmp_path / "nvidiactl")
    if driver:
        module._DRIVER.touch()
    words = ["apptainer", "exec", *given, "numl.sif"]
    assert module.within_image("numl.sif", flags) == words
    assert module.within_image(None, flags) == []


def test_a_server_with_gpus_knows_its_ports_though_its_image_gets_no_environment(image):
    assert image.run("--gpu", "--", "sh", "-c", "exit 7", APPTAINER_CLEANENV="1") == (7, "", "")


def test_the_command_gets_a_copy_of_its_fhicl_that_names_the_server(image, tmp_path):
    fcl = tmp_path / "job.fcl"
    fcl.write_text("physics.producers.ng.TritonConfig: {}\n")
    status, out, _ = image.run("--fcl", str(fcl), "--", "grep", "server", str(fcl))
    assert status == 0
    assert out.startswith('physics.producers.ng.TritonConfig.serverURL: "127.0.0.1:')
    assert fcl.read_text() == "physics.producers.ng.TritonConfig: {}\n"
    assert image.is_clean()


def test_signals_reach_the_command_and_its_status_comes_back(image):
    wait = "trap 'exit 9' TERM; echo begun; while :; do sleep 0.02; done"
    process, said = image.hear("sh", "-c", wait)
    assert said == "begun\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON_S) == 9
    assert image.is_clean()
    assert image.run("--", "sh", "-c", "kill -KILL $$")[0] == 128 + signal.SIGKILL


def test_a_signal_while_the_server_is_stopped_leaves_the_commands_status(image):
    (image.folder / "busy").touch()
    process = image.begin("--", "sh", "-c", "exit 7")
    until(image.is_stopping, "its stop")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGHUP)
    (image.folder / "busy").unlink()
    assert process.wait(SOON_S) == 7
    assert image.is_clean()


def test_a_signal_that_is_ignored_is_not_passed_on(image):
    wait = (
        "import signal, sys, time; signal.signal(signal.SIGHUP, lambda *_: sys.exit(3));"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); print('begun', flush=True)\n"
        "while True: time.sleep(0.02)"
    )
    process, said = image.hear(sys.executable, "-c", wait, ignored=signal.SIGHUP)
    assert said == "begun\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON_S) == 9


def test_a_parent_that_ignores_its_childrens_end_does_not_hide_the_status(image):
    assert image.run("--", "sh", "-c", "exit 7", ignored=signal.SIGCHLD) == (7, "", "")
    (image.folder / "wrong").touch()
    status, _, said = image.run("--", "true", ignored=signal.SIGCHLD)
    assert (status, said) == (
        125, "exec: the server is not usable: unhealthy: nugraph3: wrong answer\n"
    )  # fmt: skip


NAMELESS = r"import ctypes; ctypes.CDLL(None).prctl(15, b'\xff', 0, 0, 0); print(); input()"


def test_a_process_whose_name_is_no_text_does_not_end_the_job(image):
    with subprocess.Popen(
        [sys.executable, "-c", NAMELESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        # It is seen, as the server is watched every half a second.
        assert image.run("--", "sh", "-c", "sleep 1.2; exit 7") == (7, "", "")
        other.kill()


def test_a_signal_before_the_server_is_ready_ends_the_start(image):
    (image.folder / "silent").touch()
    process = image.begin("--", "true")
    until(lambda: bool(image.starts()), "a start")
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON_S) == 128 + signal.SIGTERM
    assert image.is_clean()


def test_a_job_that_is_killed_leaves_neither_server_nor_command_nor_files(image):
    process, command = image.hear("sh", "-c", "sleep 1000 & echo $!; wait")
    process.kill()
    process.wait()
    until(lambda: not psutil.pid_exists(int(command)) and image.is_clean(), "all gone")


def test_a_setuid_server_is_stopped_in_order_if_the_job_is_killed(image):
    (image.folder / "setuid").touch()
    process, _ = image.hear("sh", "-c", "echo begun; exec sleep 1000")
    process.kill()
    process.wait()
    until(image.is_clean, "all gone")
    assert image.is_stopping()


def test_a_server_that_dies_is_started_again_where_it_was(image):
    process, _ = image.hear("sh", "-c", "echo begun; exec sleep 1000")
    [(server, port)] = image.starts()
    os.kill(server, signal.SIGKILL)
    until(lambda: len(image.starts()) == 2, "a second start")
    assert image.starts()[1][1] == port
    process.terminate()
    assert process.wait(SOON_S) == 128 + signal.SIGTERM
    assert process.stderr.read() == "exec: the server died: starting it again\n"
    assert image.is_clean()


@pytest.mark.parametrize("body", ["a zombie", "reaped"])
def test_a_model_process_that_dies_has_the_server_started_again_whoever_reaps_it(image, body):
    """From Triton 25.12 on the server does, when it is asked whether it is ready."""
    (image.folder / "stub").write_text(body)
    process, _ = image.hear("sh", "-c", "echo begun; exec sleep 1000")
    os.kill(int((image.folder / "stubs").read_text()), signal.SIGKILL)
    (image.folder / "busy").touch()
    until(image.is_stopping, "its stop")
    time.sleep(1.2)  # it is watched twice meanwhile
    (image.folder / "busy").unlink()
    until(lambda: len(image.starts()) == 2, "a second start")
    asked = (image.folder / "stopped").read_text().split()
    assert asked == [str(image.starts()[0][0])]
    process.terminate()
    assert process.wait(SOON_S) == 128 + signal.SIGTERM
    assert process.stderr.read().splitlines() == [
        "exec: a model process has died: restarting the server",
        "exec: the server died: starting it again",
    ]
    assert image.is_clean()


def test_a_terminals_job_ends_no_group_by_the_number_that_its_start_has_used(image):
    """Others have the number of the start's health check by then, which a process plays here."""
    (image.folder / "remaining").touch()
    terminal, stdin = pty.openpty()
    process = image.begin("--", "true", stdin=stdin)
    assert process.wait(SOON_S) == 0
    other = psutil.Process(int((image.folder / "remaining").read_text()))
    assert other.status() != psutil.STATUS_ZOMBIE
    other.kill()
    for each in (terminal, stdin):
        os.close(each)


def test_five_at_once_do_not_meet(image):
    with ThreadPoolExecutor(5) as pool:
        done = list(pool.map(lambda _: image.run("--", sys.executable, "-c", SHOW), range(5)))
    assert [status for status, *_ in done] == [0] * 5
    assert len({url for _, out, _ in done for url in out.split()}) == 10
    assert image.is_clean()
