"""A doctor on a host that is ill: each finding provoked, and the launch that is refused for it.

What a test hides from the commands, or puts in its place, it does in a mount name space.
"""

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.engines.leftovers import SHARED_MEMORY, shared_memory_regions, shm_prefix
from deploy.engines.server import living_stubs
from deploy.environment.environment import MARKER, plan_environment
from deploy.host.paths import cache_folder
from tests.commands import run_command
from tests.kit import SMALL, SOON_S, Kit, until
from tests.programs import write_program

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
# A Docker that does not run, or what other programs leave behind, is this host's own affair.
OF_THE_HOST = {"leftovers", "engine docker", "engine apptainer"}
LOCAL = 'engine = "local"\nmodels = ["nugraph3"]\ninstances = 1\n'


class Site:
    """A deployment file, and commands that see a host changed by ``before``."""

    def __init__(self, kit: Kit, file: Path, before: str = "", **variables: str) -> None:
        self.kit, self.file, self.before, self.variables = kit, file, before, variables
        file.write_text(f'name = "{file.stem}"\n{LOCAL}')

    def run(self, command: str, *flags: str) -> dict[str, Any]:
        words = [command, "--json", *flags, str(self.file)]
        variables = {**self.kit.variables, **self.variables}
        done = run_command(words, variables, timeout=120, before=self.before)
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return {**answer, "status": done.returncode}

    def faults(self) -> list[dict[str, Any]]:
        """Return what is not right with the deployment."""
        answer = self.run("doctor")
        levels = {f["level"] for f in answer["findings"]}
        assert answer["status"] == (1 if "problem" in levels else 0), answer
        return [
            f for f in answer["findings"]
            if f["level"] != "ok" and f["finding"] not in OF_THE_HOST
        ]  # fmt: skip

    def problem(self, said: str) -> tuple[str, str]:
        """Return detail and remedy of the one problem that says so."""
        return self._one("problem", said, self.faults())

    def warning(self, said: str) -> tuple[str, str]:
        """Return detail and remedy of the one warning that says so; nothing is a problem."""
        faults = self.faults()
        assert {f["level"] for f in faults} == {"warning"}, faults
        return self._one("warning", said, faults)

    @staticmethod
    def _one(level: str, said: str, faults: list[dict[str, Any]]) -> tuple[str, str]:
        (found,) = (f for f in faults if f["level"] == level and said in f["detail"])
        return found["detail"], found["remedy"]

    def refusal(self) -> tuple[str, str]:
        """Return cause and remedy with which a launch is refused, before anything is made."""
        answer = self.run("up")
        assert answer["status"] in (1, 2), answer
        assert not (self.kit.folder(self.file.stem) / "plan.json").exists()
        return answer["error"], answer["remedy"]


@pytest.fixture
def site(kit, tmp_path):
    return lambda before="", **variables: Site(kit, tmp_path / "site.toml", before, **variables)


def test_a_host_that_is_fine_is_told_to_be(site):
    fine = site()
    assert not fine.faults()
    looked_at = {f["finding"] for f in fine.run("doctor")["findings"]}
    assert looked_at >= {
        "engine", "engine docker", "engine apptainer", "engine local", "GPU", "room", "ports",
        "model repository",
    }  # fmt: skip


@ROOT
def test_shared_memory_that_is_too_small_is_named_before_a_launch(site):
    ill = site(f"mount -t tmpfs -o size=1m none {SHARED_MEMORY}")
    found = ill.problem(str(SHARED_MEMORY))
    assert found[0] == (
        "not enough disk space: 6 MB needed (6 MB in /dev/shm for the model instances), 1 MB free"
    )
    assert ill.refusal() == found


@ROOT
def test_a_cache_that_is_too_small_for_the_environment_is_named_before_a_launch(site, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    ill = site(f"mount -t tmpfs -o size=10m none {small}", XDG_CACHE_HOME=str(small))
    found = ill.problem("for the execution environment")
    assert found[0].startswith("not enough disk space: 500 MB needed")
    assert ill.refusal() == found


@ROOT
def test_a_cache_that_cannot_be_executed_in_is_named_before_a_launch(site, tmp_path):
    cache = tmp_path / "noexec"
    cache.mkdir()
    ill = site(f"mount -t tmpfs -o noexec none {cache}", XDG_CACHE_HOME=str(cache))
    found = ill.problem("noexec")
    assert found[0] == f"{cache} is mounted noexec: nothing in it can be started"
    assert ill.refusal() == found


def test_a_cache_with_a_blank_in_its_name_is_named_before_a_launch(site, tmp_path):
    ill = site(XDG_CACHE_HOME=str(tmp_path / "my cache"))
    found = ill.problem("cannot use a path with spaces")
    assert ill.refusal() == found


@ROOT
def test_a_cache_in_which_all_is_made_may_be_read_only(site):
    assert site().run("prepare")["status"] == 0
    cache = cache_folder()
    ill = site(f"mount --bind {cache} {cache} && mount -o remount,ro,bind {cache}")
    assert ill.warning(str(cache)) == (
        f"{cache} cannot be written to: cannot put the cache there", "set XDG_CACHE_HOME",
    )  # fmt: skip
    assert ill.run("prepare")["status"] == 0


def test_a_taken_port_is_named_before_a_launch(site):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ill = site()
        with ill.file.open("a") as file:
            file.write(f"[ports]\nhttp = {port}\ngrpc = 18101\nmetrics = 18102\n")
        found = ill.problem(str(port))
        assert found[0] == f"ports: http port {port} on 127.0.0.1 is taken by another program"
        assert ill.refusal() == found


def test_an_environment_of_another_python_is_named_before_a_launch(site, tmp_path, monkeypatch):
    """As when somebody has replaced its interpreter; a script stands for the new one."""
    triton = cache_folder() / "triton"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    environment = plan_environment("serving")
    (environment.folder / "bin").mkdir(parents=True)
    (environment.folder / "lib").mkdir()
    (environment.folder / MARKER).write_text("{}")
    (environment.folder / "bin" / "activate").touch()
    environment.libpython.symlink_to(environment.interpreter.libpython)
    write_program(environment.python, """echo '["3.9.1", "", "", "", "", ""]'""")
    (cache_folder() / "triton").symlink_to(triton)
    ill = site(XDG_CACHE_HOME=str(tmp_path))
    cause, remedy = ill.problem("the stub is built for")
    assert cause == (
        f"execution environment {environment.folder} has Python 3.9.1; "
        f"the stub is built for {environment.lock.python}"
    )
    assert remedy == f"rm -r {environment.folder}, and run the command again"
    assert ill.refusal() == (cause, remedy)


# Leftovers. The commands run for real, and look at the whole host.


def test_what_nobody_remembers_is_found_and_removed_and_a_living_server_keeps_its_own(
    kit, demo, single
):
    """Killed with its supervisor, and its state file lost: only the host itself can tell."""
    server = psutil.Process(single["server"]["pid"])
    stubs = [stub.process for stub in living_stubs(server)]
    for pid in (single["supervisor"]["pid"], server.pid):
        os.kill(pid, signal.SIGKILL)
    (kit.folder("single") / "state.json").unlink()
    prefix = shm_prefix(kit.folder("single"))
    for region in shared_memory_regions(prefix):
        os.utime(region, (time.time() - 3600,) * 2)  # a young one might just be coming into use
    until(lambda: not psutil.pid_exists(server.pid), "its death")
    of_the_living = set(shared_memory_regions(shm_prefix(kit.folder("demo"))))

    kit.json("doctor", "--fix")  # mends, or not, what other programs have left, too
    assert not any(stub.process() for stub in stubs)
    assert not shared_memory_regions(prefix)
    assert of_the_living == set(shared_memory_regions(shm_prefix(kit.folder("demo"))))
    assert kit.json("status", "--name", "demo")["ok"]
    assert kit.json("smoke", "--name", "demo")["ok"]


def test_status_tells_why_a_dead_server_has_died(kit):
    """A server that could not be started again: another program has its port meanwhile."""
    answer = kit.up("unlucky", *SMALL)
    os.kill(answer["server"]["pid"], signal.SIGKILL)
    port = answer["ports"]["grpc"]
    with _listening(port):

        def told() -> bool:
            status = kit.json("status", "--name", "unlucky")
            problems = " ".join(status["problems"])
            return f"127.0.0.1:{port} was taken by another program" in problems and bool(
                status["remedy"]
            )

        until(told, "the cause")
    kit.end("unlucky")


def _listening(port: int) -> socket.socket:
    deadline = time.monotonic() + SOON_S
    while True:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            assert time.monotonic() < deadline
