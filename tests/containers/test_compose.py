"""containers/compose.yaml, run by compose, beside what up.py asks the same engine for."""

import os
import shutil

import pytest

from deploy.deployment.deployment import Deployment
from deploy.deployment.ports import choose_ports
from deploy.engines.docker import DockerEngine
from deploy.engines.docker_container import create_options
from deploy.engines.resolved import Resolved
from deploy.host.paths import CHECKOUT
from tests.containers.conftest import Server
from tests.programs import run_program

PROJECT = "numlkit-test-compose"


def compose(*words: str, **variables: str) -> str:
    """Run compose, the plugin of docker or the program that was before it."""
    program = ["docker", "compose"]
    if run_program([*program, "version"]).returncode != 0:
        assert shutil.which("docker-compose"), "no compose: sudo apt-get install docker-compose"
        program = ["docker-compose"]
    flags = ["--project-name", PROJECT, "--file", CHECKOUT / "containers/compose.yaml"]
    done = run_program([*program, *flags, *words], env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def server(engine, image):
    ports = choose_ports(Deployment())
    variables = {f"NUML_{use.upper()}_PORT": str(p) for use, p in ports.model_dump().items()}
    compose("up", "--detach", NUML_IMAGE=image.tag, **variables)
    try:
        container = engine.containers.get(compose("ps", "--quiet").strip())
        urls = (f"http://127.0.0.1:{ports.http}", f"grpc://127.0.0.1:{ports.grpc}")
        yield Server(container, urls)
    finally:
        compose("down", "--timeout", "30")


def test_what_compose_starts_gives_every_golden_answer(server):
    server.wait_healthy()
    server.assert_right()


def test_compose_shuts_in_as_up_does(server, image):
    deployment = Deployment(engine="docker", image=image.tag)
    wanted = create_options(DockerEngine(Resolved(deployment)).plan())
    host = server.container.attrs["HostConfig"]
    assert host["ReadonlyRootfs"] is wanted["read_only"]
    assert host["CapDrop"] == wanted["cap_drop"]
    assert host["SecurityOpt"] == wanted["security_opt"]
    assert host["Tmpfs"] == wanted["tmpfs"]
    assert host["ShmSize"] == wanted["shm_size"]
    assert host["RestartPolicy"]["Name"] == wanted["restart_policy"]["Name"]
    # Locked memory is lifted by up only where the engine can.
    stack = [limit for limit in wanted["ulimits"] if limit["Name"] == "stack"]
    assert host["Ulimits"] == stack
    bound = {binding["HostIp"] for found in host["PortBindings"].values() for binding in found}
    assert bound == {"127.0.0.1"}


def test_the_gpu_variant_asks_for_all_gpus_and_is_off_unless_asked_for(engine, server):
    ours = {"label": f"com.docker.compose.project={PROJECT}"}
    assert [c.id for c in engine.containers.list(filters=ours)] == [server.container.id]
    assert "driver: nvidia" in compose("--profile", "gpu", "config")
