"""The .sif as its users have it: run, tested, as an instance, by root and by an ordinary user."""

import json
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from deploy.client.probe import Probe, smoke
from deploy.deployment.deployment import DEFAULT_MODELS, Ports
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.golden import read_golden
from tests.containers.conftest import HEALTH, STOPS
from tests.containers.sif.conftest import Host
from tests.kit import free_ports, open_to_all
from tests.programs import run_program, write_program

START_S = 180


def regions(ports: Ports) -> str:
    """Return how the shared memory regions of the server at these ports begin, by its own words."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if f"--http-port={ports.http}" in words and words[0].endswith("/tritonserver"):
            [prefix] = (
                word.partition("shm-region-prefix-name=")[2] for word in words if "shm-" in word
            )
            return str(prefix)
    raise AssertionError(f"no server at {ports}")


@dataclass(frozen=True)
class Scratch:
    """What a server writes to: a folder of the host as its /tmp, and the host's /dev/shm."""

    tmp: Path

    @property
    def options(self) -> tuple[str, ...]:
        return ("--bind", f"{self.tmp}:/tmp")

    def content(self, prefix: str) -> list[str]:
        shared = (path.name for path in Path("/dev/shm").glob(f"{prefix}*"))
        return [*(path.name for path in self.tmp.iterdir()), *shared]


@pytest.fixture
def scratch():
    with tempfile.TemporaryDirectory() as tmp:
        Path(tmp).chmod(0o1777)
        yield Scratch(Path(tmp))


@pytest.fixture
def ports():
    return free_ports()


def _environment(ports: Ports) -> str:
    return ",".join(f"NUML_{use.upper()}_PORT={port}" for use, port in ports.model_dump().items())


def assert_all_models_answer(ports: Ports) -> None:
    for url in (f"http://127.0.0.1:{ports.http}", f"grpc://127.0.0.1:{ports.grpc}"):
        for model in DEFAULT_MODELS:
            golden = read_golden(MODEL_REPOSITORY / model / "1" / "golden.npz")
            result = smoke(Probe(url), model, golden)
            assert result.ok, result


@pytest.mark.parametrize(
    ("host", "form"), [("root", "sif"), ("ordinary", "sif_without_docker")], indirect=["host"]
)
def test_its_test_gives_every_models_known_answer(host, form, request):
    built: Path = request.getfixturevalue(form)
    lines = host.output("apptainer", "test", "--containall", built).splitlines()
    answers = [json.loads(line) for line in lines if line.startswith('{"model"')]
    assert [answer["ok"] for answer in answers] == [True] * len(DEFAULT_MODELS)


@pytest.mark.parametrize(
    ("host", "isolation"), [("root", ()), ("ordinary", ("--containall",))], indirect=["host"]
)
def test_run_serves_and_leaves_nothing(host, sif, ports, scratch, isolation, tmp_path):
    environment = _environment(ports)
    options = (*isolation, *scratch.options, "--env", environment)
    command = host.words("apptainer", "run", *options, sif, "--cpu", STOPS)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log)
        try:
            waited = host.run("apptainer", "exec", "--env", environment, sif,
                              HEALTH, "--wait", str(START_S))  # fmt: skip
            assert waited.returncode == 0, waited.stdout + (tmp_path / "log").read_text()
            assert_all_models_answer(ports)
            prefix = regions(ports)
            content = scratch.content(prefix)
            assert any(name.startswith("python_env_") for name in content)
            # With --containall it has a /dev/shm of its own.
            assert any(name.startswith(prefix) for name in content) == (not isolation)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
            process.wait()
    assert scratch.content(prefix) == []


@pytest.mark.parametrize(
    ("host", "action"), [("root", "run"), ("ordinary", "start")], indirect=["host"]
)
def test_an_instance_serves_and_stops_cleanly(host, sif, ports, scratch, action):
    name = f"numlkit-test-{os.getpid()}"
    environment = _environment(ports)
    options = (*host.options, "--containall", *scratch.options, "--env", environment)
    host.output("apptainer", "instance", action, *options, sif, name, "--cpu")
    try:
        health = (HEALTH, "--wait", str(START_S))
        # A process that joins an instance does not get the environment that it was given.
        joined = ("apptainer", "exec", "--env", environment, f"instance://{name}", *health)
        waited = run_program(Host(host.account).words(*joined))
        assert waited.returncode == 0, waited.stdout + waited.stderr
        assert_all_models_answer(ports)
        prefix = regions(ports)
    finally:
        stopped = host.run("apptainer", "instance", "stop", "--timeout", "60", name)
    assert stopped.returncode == 0, stopped.stderr
    assert name not in host.output("apptainer", "instance", "list")
    assert scratch.content(prefix) == []


def test_nothing_can_be_written_to_it(host, sif):
    done = host.run("apptainer", "exec", "--containall", sif, "touch", "/opt/numl/env/lib/x")
    assert done.returncode != 0
    assert "Read-only file system" in done.stderr or "Permission denied" in done.stderr


def test_it_listens_on_loopback_unless_told_otherwise(host, sif):
    show = ("sh", "-c", "echo $NUML_LISTEN")
    assert host.output("apptainer", "exec", sif, *show).strip() == "127.0.0.1"
    told = host.output("apptainer", "exec", "--env", "NUML_LISTEN=0.0.0.0", sif, *show)
    assert told.strip() == "0.0.0.0"


def test_packages_in_the_home_folder_are_not_seen(host, sif):
    words = ("/opt/numl/env/bin/python", "-c", "import site; print(site.ENABLE_USER_SITE)")
    assert host.output("apptainer", "exec", sif, *words).strip() == "False"


def test_the_file_itself_can_be_started(host, sif, tmp_path):
    # As packages of Apptainer install it.
    write_program(tmp_path / "run-singularity", 'exec apptainer --quiet run "$@"')
    open_to_all(tmp_path)
    done = host.run("env", f"PATH={tmp_path}:{os.environ['PATH']}", sif, "--gpu")
    assert done.returncode == 2
    assert "no models for a GPU" in done.stderr
