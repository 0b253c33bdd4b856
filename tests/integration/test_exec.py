"""``numlkit exec`` with a real Triton: a job's server lives and ends with the job."""

from __future__ import annotations

import subprocess

import psutil

from tests.kit import NUMLKIT, SMALL, SOON_S, until
from tests.programs import run_program


def test_the_command_asks_its_own_server_and_nothing_is_left(kit, tmp_path):
    log = tmp_path / "server.log"
    smoke = f"{NUMLKIT} smoke --url $NUML_GRPC_URL --models nugraph3 --quiet; exit 7"
    framework = {"PYTHONHOME": "/another/python"}
    done = run_program(
        [NUMLKIT, "exec", *SMALL, "--engine", kit.engine, "--log", log, "--", "sh", "-c", smoke],
        env=kit.variables | framework, timeout=SOON_S,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert "grpc://127.0.0.1" in done.stdout
    assert "nugraph3" in log.read_text()
    assert not list((kit.state / "numlkit/deployments").glob("exec-*"))


def test_a_job_that_is_killed_takes_its_server_with_it(kit):
    command = ["sh", "-c", "sleep 1000 & echo $!; wait"]
    process = subprocess.Popen(
        [NUMLKIT, "exec", *SMALL, "--engine", kit.engine, "--", *command],
        env=kit.variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    grandchild = int(process.stdout.readline())
    [folder] = (kit.state / "numlkit/deployments").glob("exec-*")
    server = kit.noted(folder.name)["server"]["pid"]
    process.kill()
    process.communicate()

    def gone() -> bool:
        return not (psutil.pid_exists(grandchild) or psutil.pid_exists(server) or folder.exists())

    until(gone, "all gone")
    assert kit.leftovers(folder.name) == []
