"""``exec`` of an image, as the one file that the image has; a stand-in plays image and Triton."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from deploy.artefacts.context import write_program
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

    def begin(self, *words: str) -> subprocess.Popen[str]:
        path = f"{HERE}:{os.environ['PATH']}"
        process = subprocess.Popen(
            [sys.executable, "-IB", self.program, "--image", self.folder, *words],
            env={**os.environ, "PATH": path, "TMPDIR": str(self.tmp)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.begun.append(process)
        return process

    def run(self, *words: str) -> tuple[int, str, str]:
        process = self.begin(*words)
        out, err = process.communicate(timeout=SOON_S)
        return process.returncode, out, err

    def starts(self) -> list[tuple[int, int]]:
        """Return process and port of each start of a server."""
        noted = self.folder / "started"
        lines = noted.read_text().splitlines() if noted.exists() else []
        return [(int(pid), int(port)) for pid, port in map(str.split, lines)]

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
    assert image.run("--timeout", "2", "--", "true") == (125, "", said)
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
    process = image.begin("--", "sh", "-c", wait)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON_S) == 9
    assert image.is_clean()
    assert image.run("--", "sh", "-c", "kill -KILL $$")[0] == 128 + signal.SIGKILL


def test_a_signal_before_the_server_is_ready_ends_the_start(image):
    (image.folder / "silent").touch()
    process = image.begin("--", "true")
    until(lambda: bool(image.starts()), "a start")
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON_S) == 128 + signal.SIGTERM
    assert image.is_clean()


def test_a_job_that_is_killed_leaves_neither_server_nor_command_nor_files(image):
    process = image.begin("--", "sh", "-c", "sleep 1000 & echo $!; wait")
    assert process.stdout is not None
    command = int(process.stdout.readline())
    process.kill()
    process.wait()
    until(lambda: not psutil.pid_exists(command) and image.is_clean(), "all gone")


def test_a_server_that_dies_is_started_again_where_it_was(image):
    process = image.begin("--", "sh", "-c", "echo begun; exec sleep 1000")
    assert process.stdout is not None
    process.stdout.readline()
    [(server, port)] = image.starts()
    os.kill(server, signal.SIGKILL)
    until(lambda: len(image.starts()) == 2, "a second start")
    assert image.starts()[1][1] == port
    process.terminate()
    assert process.wait(SOON_S) == 128 + signal.SIGTERM
    assert process.stderr is not None
    assert process.stderr.read() == "exec: the server died: starting it again\n"
    assert image.is_clean()


def test_ten_at_once_do_not_meet(image):
    with ThreadPoolExecutor(10) as pool:
        done = list(pool.map(lambda _: image.run("--", sys.executable, "-c", SHOW), range(10)))
    assert [status for status, *_ in done] == [0] * 10
    assert len({url for _, out, _ in done for url in out.split()}) == 20
    assert image.is_clean()
