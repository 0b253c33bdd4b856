"""What a deployment has left in the engines is told from what somebody may use."""

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest
from docker.errors import NotFound

from deploy.deployment.deployment import Deployment
from deploy.deployment.state import DeploymentFolder, DeploymentState, ProcessId
from deploy.engines.apptainer import ApptainerEngine
from deploy.engines.docker import DockerEngine, remove_ended
from deploy.engines.docker_container import DEPLOYMENT_LABEL, STATE_LABEL
from deploy.engines.instance import config_folder, instance_files, stop_unused
from deploy.engines.resolved import Resolved
from deploy.host.errors import KitError
from deploy.host.finding import Finding
from tests.containers.failures.test_docker import import_image
from tests.containers.failures.tiny import WAIT, make_sif


@pytest.fixture(scope="module")
def image(engine, tags):
    return import_image(engine, tags("tiny"))


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def _folder() -> DeploymentFolder:
    folder = DeploymentFolder("lost")
    folder.path.mkdir(parents=True, exist_ok=True)
    return folder


def _remember(folder: DeploymentFolder) -> None:
    folder.write_state(
        DeploymentState.model_validate(
            {"name": "lost", "engine": "docker", "node": os.uname().nodename, "host": "127.0.0.1",
             "ports": {}, "models": (), "artefact": "", "log": folder.log, "phase": "ready",
             "supervisor": ProcessId.of(os.getpid())}
        )
    )  # fmt: skip


@pytest.fixture
def container(engine, image):
    """A running container of a deployment that nobody remembers."""
    made = engine.containers.create(
        image,
        name=f"numlkit-{os.getuid()}-{secrets.token_hex(4)}-lost",
        entrypoint=[WAIT],
        labels={DEPLOYMENT_LABEL: "lost", STATE_LABEL: str(_folder().path)},
    )
    made.start()
    yield made
    with suppress(NotFound):
        made.remove(force=True)


def _about(name: str, findings: Iterator[Finding]) -> list[Finding]:
    return [finding for finding in findings if name in finding.detail]


def test_a_container_that_runs_is_named_and_left_alone(container):
    (found,) = _about(container.name, DockerEngine.leftovers())
    assert (found.level, found.fix) == ("problem", None)
    assert found.remedy == f"docker rm --force {container.name}, if nobody uses it"
    with pytest.raises(KitError, match="cannot be removed: You cannot remove a running container"):
        remove_ended(container.name, container.id, _folder().path)
    container.reload()
    assert container.status == "running"


def test_a_container_that_has_ended_is_removed(engine, container):
    container.kill()
    container.wait()
    (found,) = _about(container.name, DockerEngine.leftovers())
    assert found.fix() == f"removed container {container.name}"
    assert not engine.containers.list(all=True, filters={"name": container.name})


def test_a_container_of_a_deployment_that_is_remembered_is_none_of_them(container):
    container.kill()
    container.wait()
    (found,) = _about(container.name, DockerEngine.leftovers())
    _remember(_folder())
    assert not _about(container.name, DockerEngine.leftovers())
    with pytest.raises(KitError, match="belongs to a deployment again"):
        found.fix()
    container.reload()


def test_another_user_s_container_is_none_of_them(container):
    container.kill()
    container.wait()
    container.rename(f"numlkit-{os.getuid() + 1}-{secrets.token_hex(4)}-lost")
    container.reload()
    assert not _about(container.name, DockerEngine.leftovers())


@pytest.fixture(scope="module")
def sif(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sif")
    return lambda program: make_sif(folder / f"{program[1:]}.sif", runs=program)


@pytest.fixture
def instance(sif):
    """Starts an instance of a deployment that nobody remembers; returns its name."""
    name, folder = f"numlkit-test-{secrets.token_hex(4)}", _folder().path
    environment = {**os.environ, "APPTAINER_CONFIGDIR": str(config_folder(folder))}

    def start(program: str) -> str:
        words = ["apptainer", "instance", "run", "--containall", str(sif(program)), name]
        subprocess.run(words, env=environment, check=True, capture_output=True)
        return name

    yield start
    words = ["apptainer", "instance", "stop", "--force", name]
    subprocess.run(words, env=environment, check=False, capture_output=True)


def test_an_instance_without_a_server_is_stopped(instance):
    name, folder = instance(WAIT), _folder()
    (found,) = _about(name, ApptainerEngine.leftovers())
    assert found.detail.endswith("has no server")
    _remember(folder)
    assert not list(ApptainerEngine.leftovers())
    with pytest.raises(KitError, match="is in use again"):
        found.fix()
    folder.state_file.unlink()
    assert found.fix() == f"stopped instance {name}"
    assert not instance_files(folder.path)


def test_an_instance_with_a_server_is_named_and_left_alone(instance):
    name = instance("/tritonserver")
    (found,) = _about(name, ApptainerEngine.leftovers())
    assert (found.level, found.fix) == ("problem", None)
    assert f"apptainer instance stop {name}" in (found.remedy or "")
    (file,) = instance_files(_folder().path)
    with pytest.raises(KitError, match="is in use again"):
        stop_unused(file, _folder().path)


def test_engines_that_are_there_say_what_they_are(engine):
    docker_says, *_ = DockerEngine(Resolved(Deployment())).findings("warning")
    assert docker_says.level == "ok"
    assert engine.version()["Version"] in docker_says.detail
    apptainer_says, *_ = ApptainerEngine(Resolved(Deployment())).findings("warning")
    assert apptainer_says.level == "ok"
    assert apptainer_says.detail.startswith("apptainer 1")
