"""Which engine ``auto`` takes, and what it says of those it passes over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.deployment.deployment import Deployment
from deploy.engines import choose
from deploy.engines.choose import choose_engine, engine_to_prepare
from deploy.engines.resolved import Resolved
from deploy.host.errors import DeploymentError, KitError, LaunchError, RepositoryError
from tests.programs import write_program
from tests.unit.deploy.engines.site import LABELS

SHARED = "shared_memory needs engine local, or docker for clients in containers"


@pytest.fixture(autouse=True)
def _no_container_engine(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "debian"})


def test_without_a_container_engine_it_is_the_one_that_needs_none_and_says_why():
    engine, reason = choose_engine(Resolved(Deployment()))
    assert engine.name == "local"
    assert reason == (
        "needs no container; "
        "docker: no Docker engine answers at unix:///nowhere.sock, which DOCKER_HOST names; "
        "apptainer: apptainer is not installed"
    )


def test_apptainer_is_taken_where_its_sif_is_there(tmp_path):
    """A script stands for Apptainer: it is asked for the labels of a .sif only."""
    answer = json.dumps({"data": {"attributes": {"labels": LABELS}}})
    write_program(tmp_path / "apptainer", f"echo '{answer}'")
    sif = tmp_path / "numl.sif"
    sif.touch()
    engine, reason = choose_engine(Resolved(Deployment(image=str(sif))))
    assert engine.name == "apptainer"
    assert reason.startswith("its .sif is here; docker: no Docker engine answers at ")


def test_what_no_engine_can_mend_is_said_once():
    """The file belongs to the models, whichever engine serves them."""
    with pytest.raises(RepositoryError) as caught:
        choose_engine(Resolved(Deployment(checkpoints={"nugraph3": Path("/none.ckpt")})))
    assert caught.value.cause == "/none.ckpt: No such file or directory"


@pytest.fixture
def refusals(monkeypatch):
    """What engines with a container say when they are asked for their artefact, by name."""
    found: dict[str, KitError] = {}

    class Refusing:
        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, _resolved: Resolved) -> Refusing:
            return self

        def check_able(self) -> None:
            if self.name == "local":
                raise DeploymentError("not in a container")

        def artefact(self) -> str:
            raise found[self.name]

    monkeypatch.setattr(choose, "engine_named", Refusing)
    return found


def test_the_one_reason_why_no_engine_starts_a_stock_image_is_said_once(refusals):
    denied = RepositoryError("/models: Permission denied", "chmod it")
    refusals |= {"docker": denied, "apptainer": denied}
    with pytest.raises(RepositoryError) as caught:
        choose_engine(Resolved(Deployment(env="packed")))
    assert caught.value is denied


def test_auto_needs_an_engine_for_containers(refusals):
    for name in ("docker", "apptainer"):
        refusals[name] = LaunchError(f"{name} is not here", "install it")
    with pytest.raises(LaunchError) as caught:
        choose_engine(Resolved(Deployment(env="packed")))
    assert caught.value.cause == (
        "no engine can start it: docker: docker is not here (install it); "
        "apptainer: apptainer is not here (install it); local: not in a container"
    )


@pytest.mark.parametrize("name", ["local", "docker", "apptainer"])
def test_what_is_asked_for_is_taken_without_a_word(name):
    engine, reason = choose_engine(Resolved(Deployment(engine=name)))
    assert (engine.name, reason) == (name, None)


@pytest.mark.parametrize(
    ("engine", "settings", "cause"),
    [
        ("local", {"env": "packed"}, "env packed needs engine docker or apptainer"),
        ("local", {"image": "x"}, "an image needs engine docker or apptainer"),
        ("apptainer", {"shared_memory": True}, f"{SHARED}: a container has its own /dev/shm"),
    ],
    ids=["packed without a container", "image without a container", "memory in a container"],
)
def test_what_the_engine_that_is_asked_for_cannot_do_is_refused(engine, settings, cause):
    resolved = Resolved(Deployment(engine=engine, **settings))
    for choose_one in (choose_engine, engine_to_prepare):
        with pytest.raises(DeploymentError) as caught:
            choose_one(resolved)
        assert caught.value.cause == cause


def test_auto_takes_no_container_where_shared_memory_is_asked_for():
    engine, reason = choose_engine(Resolved(Deployment(shared_memory=True)))
    assert engine.name == "local"
    assert all(f"{name}: {SHARED}" in str(reason) for name in ("docker", "apptainer"))
