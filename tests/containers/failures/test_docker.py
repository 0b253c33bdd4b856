"""Each way a Docker engine is known to refuse, provoked; what cannot be provoked is recorded.

The recorded words are in tests/unit/deploy/host/test_failures.py.
"""

import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import DockerException

from deploy.artefacts.docker_client import connect
from deploy.client.probe import Probe
from deploy.deployment.deployment import Deployment, Ports
from deploy.deployment.plan import ContainerPlan, LaunchPlan, Mount
from deploy.deployment.ports import choose_ports
from deploy.engines.docker_server import ContainerServer
from deploy.engines.server import Server
from deploy.host.errors import BuildError, LaunchError
from deploy.host.failures import diagnose
from tests import plans
from tests.containers.failures.tiny import AARCH64, SERVER, X86_64, image_tar

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start an engine of its own")
ENGINE_S = 60
TAKEN = "was taken by another program while the container started"


def import_image(client: docker.DockerClient, tag: str, machine: int = X86_64) -> str:
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        file.write(image_tar(machine))
        file.flush()
        repository, _, name = tag.partition(":")
        client.api.import_image_from_file(file.name, repository=repository, tag=name)
    return tag


@pytest.fixture(scope="module")
def image(engine, tags):
    return import_image(engine, tags("tiny"))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "server.log").touch()
    (tmp_path / "model_repository").mkdir()
    return tmp_path


@pytest.fixture
def name(engine):
    """The name of a container, which is removed at the end, as are others that begin so."""
    name = f"numlkit-test-{secrets.token_hex(4)}"
    yield name
    for container in engine.containers.list(all=True, filters={"name": name}):
        container.remove(force=True)


def make_plan(
    folder: Path,
    image: str,
    name: str,
    *,
    ports: Ports | None = None,
    program: str = SERVER,
    source: str = "",
    limits: tuple[tuple[str, int], ...] = (),
    gpus: tuple[str, ...] = (),
    **settings: Any,
) -> LaunchPlan:
    """Return a plan whose server is the program that waits."""
    mount = Mount(source=Path(source or folder / "model_repository"), target=Path("/opt"))
    return plans.make_plan(
        folder,
        deployment=Deployment(name="failing", **settings),
        engine="docker",
        ports=ports or choose_ports(Deployment()),
        arguments=(program, f"--id={name}"),
        shm_prefix=f"{name}-",
        identity=name,
        container=ContainerPlan(image=image, name=name, mounts=(mount,), limits=limits, gpus=gpus),
    )


def start(plan: LaunchPlan) -> Server:
    return ContainerServer(plan, lambda **_changes: None)


def refusal(plan: LaunchPlan) -> LaunchError:
    return plans.refusal(lambda: start(plan))


def test_a_name_in_use_and_a_port_of_another_container_are_named(folder, image, name):
    ports = choose_ports(Deployment())
    start(make_plan(folder, image, name, ports=ports))
    error = refusal(make_plan(folder, image, name))
    assert error.cause == f"a container named {name} already exists"
    assert f"docker rm {name}" in (error.remedy or "")
    assert TAKEN in refusal(make_plan(folder, image, f"{name}-other", ports=ports)).cause


def test_a_port_of_another_program_is_named(folder, image, name):
    ports = choose_ports(Deployment())
    with socket.create_server(("127.0.0.1", ports.grpc)):
        error = refusal(make_plan(folder, image, name, ports=ports))
    assert error.cause == f"127.0.0.1:{ports.grpc} {TAKEN}"


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"image": "numlkit-test/none:none"}, "the Docker engine has no image {image}"),
        ({"source": "/no/such"}, "{source} does not exist and cannot be mounted in the container"),
        ({"program": "/opt/tritonserver/bin/tritonserver"}, "the image has no {program}"),
        ({"cpus": 1000}, f"more CPUs are requested than this host's {os.cpu_count()}"),
    ],
    ids=["image", "folder", "program", "CPUs"],
)
def test_what_is_not_there_is_named(folder, image, name, settings, cause):
    error = refusal(make_plan(folder, name=name, **{"image": image} | settings))
    assert error.cause == cause.format(**settings)


def test_a_program_for_another_processor_is_named(engine, tags, folder, name):
    image = import_image(engine, tags("arm"), AARCH64)
    plan = make_plan(folder, image, name, heal=False)
    with pytest.raises(LaunchError) as caught:
        start(plan).wait_ready(
            Probe(f"http://127.0.0.1:{plan.ports.http}", timeout=1),
            {"nugraph3": None},
            deadline=time.monotonic() + 60,
            stopped=lambda: False,
        )
    assert caught.value.cause.endswith("was built for another processor than this host's")


def test_gpus_without_a_runtime_for_them_name_the_container_toolkit(folder, image, name):
    error = refusal(make_plan(folder, image, name, gpus=("GPU-0123",)))
    assert "the NVIDIA container toolkit is missing" in error.cause
    assert "install nvidia-container-toolkit" in (error.remedy or "")


def test_a_limit_that_the_engine_may_not_set_is_named(folder, image, name):
    """An engine without CAP_SYS_RESOURCE refuses it for real; with it, the text is recorded."""
    try:
        start(make_plan(folder, image, name, limits=(("memlock", -1),)))
    except LaunchError as error:
        known: LaunchError | None = error
    else:
        known = diagnose(
            "failed to create shim task: OCI runtime create failed: runc create failed: unable to "
            "start container process: error during container init: error setting rlimits for "
            "ready process: error setting rlimit type 8: operation not permitted: unknown"
        )
    assert known is not None
    assert known.cause.startswith("the container engine may not set a container's resource limits")


# Engines that are not there.


@ROOT
def test_a_user_whom_the_engine_does_not_let_in_is_told_so():
    """Asked by a child process of this one that has become nobody."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.environ.pop("DOCKER_HOST", None)
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            try:
                connect()
            except BuildError as error:
                os.write(writing, f"{error.cause}\n{error.remedy}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        cause, _, remedy = pipe.read().partition("\n")
    os.waitpid(child, 0)
    assert cause == "this user may not use the Docker engine"
    assert remedy == "sudo usermod -aG docker $USER, then log in again"


@dataclass(frozen=True)
class Engine:
    """A second engine, in mount and network name spaces of its own."""

    client: docker.DockerClient
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def data(self) -> Path:
        """Where it keeps its images, as it sees it itself."""
        return Path(f"/proc/{self.process.pid}/root{self.folder}/data")

    def run(self, *words: str) -> None:
        """Run a command in its network."""
        command = ["nsenter", "--target", str(self.process.pid), "--net", *words]
        subprocess.run(command, check=True, capture_output=True)


@contextmanager
def engine_of_its_own(
    monkeypatch: pytest.MonkeyPatch, before: str = "", network: str = "--bridge none"
) -> Iterator[Engine]:
    """Run an engine and have the kit use it.

    Args:
        monkeypatch: Names it in the environment.
        before: A command that changes what it sees; ``$1`` is its folder.
        network: Its flags for networks.
    """
    # The paths of its sockets must be short.
    with tempfile.TemporaryDirectory(prefix="numlkit-test-") as name:
        folder = Path(name)
        (folder / "data").mkdir()
        start = (
            'exec dockerd --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/pid" '
            f'--host "unix://$1/socket" --storage-driver vfs {network}'
        )
        script = f"set -e; mount --make-rprivate /; ip link set lo up; {before or 'true'}; {start}"
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                ["unshare", "--mount", "--net", "sh", "-c", script, "sh", name],
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            client = _answering(folder, process)
            monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/socket")
            yield Engine(client, process, folder)
        finally:
            monkeypatch.undo()
            process.terminate()
            process.wait(ENGINE_S)


def _answering(folder: Path, process: subprocess.Popen[bytes]) -> docker.DockerClient:
    deadline = time.monotonic() + ENGINE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, (folder / "log").read_text()
        with suppress(DockerException):
            return docker.DockerClient(base_url=f"unix://{folder}/socket", timeout=ENGINE_S)
        time.sleep(0.1)
    pytest.fail((folder / "log").read_text())


@ROOT
def test_an_engine_whose_disk_is_full_is_named(folder, monkeypatch):
    small = 'mount -t tmpfs -o size=8m none "$1/data"'
    with engine_of_its_own(monkeypatch, small, "--bridge none --iptables=false") as engine:
        image = import_image(engine.client, "tiny:tiny")
        with suppress(OSError), (engine.data / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(100))
        error = refusal(make_plan(folder, image, "full"))
    assert error.cause.startswith("disk full: ")
    assert "df -h" in (error.remedy or "")


@ROOT
@pytest.mark.skipif(
    not Path("/sys/fs/cgroup/cpu").is_dir(), reason="needs cgroup v1, of which one can be taken"
)
def test_an_engine_that_cannot_limit_cpus_is_named(folder, monkeypatch):
    hidden = "umount /sys/fs/cgroup/cpu"
    with engine_of_its_own(monkeypatch, hidden, "--bridge none --iptables=false") as engine:
        image = import_image(engine.client, "tiny:tiny")
        error = refusal(make_plan(folder, image, "limited", cpus=1))
    assert error.cause.startswith("the Docker engine cannot limit CPUs")


@ROOT
def test_an_engine_whose_firewall_rules_somebody_has_flushed_is_named(folder, monkeypatch):
    with engine_of_its_own(monkeypatch, network="--bip 172.31.255.1/24") as engine:
        image = import_image(engine.client, "tiny:tiny")
        for flag in ("--flush", "--delete-chain"):
            engine.run("iptables", "--table", "nat", flag)
        error = refusal(make_plan(folder, image, "unpublished"))
    assert error.cause == "the Docker engine cannot publish ports: its firewall rules are gone"
