"""A site's models in a container: what is rendered, and what is refused.

The engines here have an image that is only said to be there, and archives that hold names.
"""

import os
from pathlib import Path

import psutil
import pytest

from deploy.deployment.deployment import Deployment, Ports
from deploy.engines.apptainer import ApptainerEngine
from deploy.engines.container import ContainerEngine, ImageInUse, image_in_use
from deploy.engines.docker import DockerEngine
from deploy.engines.docker_container import create_options, run_command
from deploy.engines.instance import instance_command
from deploy.engines.resolved import Resolved
from deploy.environment.serving import serving_digest
from deploy.host.errors import DeploymentError, KitError, LaunchError
from deploy.host.paths import ENVIRONMENT_SOURCE
from tests.unit.deploy.site_repository import write_archive, write_model

PORTS = Ports(http=8010, grpc=8011, metrics=8012)
MIB = 2**20
LABELS = {
    "org.numlkit.environment.digest": "abc",
    "org.numlkit.flavour": "cpu",
    "org.numlkit.triton.release": "24.10",
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


class Docker(DockerEngine):
    """One whose engine is not asked for the image."""

    @property
    def image(self) -> ImageInUse:
        return image_in_use("numl:1", "sha256:1", LABELS, self.resolved)

    limits = ()


class Apptainer(ApptainerEngine):
    """One whose .sif is not looked for."""

    @property
    def image(self) -> ImageInUse:
        return image_in_use("/images/numl.sif", "1", LABELS, self.resolved)


def wanted(home: Path, *models: str, **settings: str) -> Resolved:
    return Resolved(Deployment.model_validate({"models_dir": home, "models": models, **settings}))


def planned(engine: ContainerEngine):
    return engine.render(ports=PORTS, identity="numlkit-numl-0123", artefact="digest")


def test_the_environments_of_a_site_s_models_are_mounted_and_nothing_else_of_it(home):
    outside = write_archive(home / "their env.tar.gz")
    write_model(home / "site", "m", environment=str(outside))
    plan = planned(Docker(wanted(home / "site", "m")))
    mounts = [(m.source, str(m.target), m.writable) for m in plan.contained.mounts[1:]]
    assert mounts == [(outside, "/opt/numl/site/environments/1-their_env.tar.gz", False)]
    assert plan.contained.extracted_bytes == 5 * 4096
    assert plan.instances == {"m": 2}


def test_what_a_packed_environment_is_extracted_to_is_large_enough_and_may_be_executed(home):
    write_model(home / "site", "m", environment=str(write_archive(home / "env.tar.gz")))
    resolved = wanted(home / "site", "m")
    plan = planned(Docker(resolved))
    tmpfs = f"exec,mode=1777,size={5 * 4096 + 64 * MIB}"
    assert f"--tmpfs=/tmp:{tmpfs}" in run_command(plan)
    assert create_options(plan)["tmpfs"] == {"/tmp": tmpfs}
    scratch = home / "state/numlkit/deployments/numl/scratch"
    mount = f"--mount=type=bind,source={scratch},destination=/tmp"
    assert mount in instance_command(planned(Apptainer(resolved)))


@pytest.mark.parametrize("models", [("m",), ("nugraph3",)])
def test_an_incomplete_configuration_has_the_server_ask_the_models(home, models):
    write_model(home / "site", "m", config='backend: "python"')
    plan = planned(Docker(wanted(home / "site", *models)))
    assert ("--disable-auto-complete-config" not in plan.arguments) == (models == ("m",))


def test_what_is_extracted_must_fit_into_memory_with_docker(home, monkeypatch):
    with pytest.raises(LaunchError, match="the container's limit is 800 MB"):
        Docker(wanted(home, "nugraph3", memory="800m")).require_room(900_000_000)
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: type("Memory", (), {"available": 500_000_000})
    )
    with pytest.raises(LaunchError) as caught:
        Docker(wanted(home, "nugraph3")).require_room(900_000_000)
    assert caught.value.cause == (
        "the packed environments, extracted, take 900 MB of memory; 500 MB is free"
    )
    Docker(wanted(home, "nugraph3")).require_room(0)


def test_what_is_extracted_must_fit_onto_the_disk_with_apptainer(home):
    with pytest.raises(
        KitError, match=r"not enough disk space: .* for packed environments, extracted"
    ):
        Apptainer(wanted(home, "nugraph3")).require_room(2**60)
    Apptainer(wanted(home, "nugraph3")).require_room(1)


def test_root_is_told_of_files_that_the_server_may_not_read(home, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 0)
    secret = write_model(home / "site", "m") / "model.py"
    secret.chmod(0o600)
    with pytest.raises(DeploymentError) as caught:
        Docker(wanted(home / "site", "m")).prepare(lambda _text: None)
    assert caught.value.cause == (
        f"{secret} cannot be read by the server's user in the container (1000, group 0)"
    )


@pytest.mark.parametrize(
    ("labels", "another"),
    [
        ({}, False),  # by an older kit: nobody knows
        ({"org.numlkit.serving.digest": serving_digest(ENVIRONMENT_SOURCE)}, False),
        ({"org.numlkit.serving.digest": "another"}, True),
    ],
)
def test_an_image_of_another_checkout_is_known(labels, another):
    assert ImageInUse("numl:1", "sha256:1", labels).is_of_another_checkout is another
