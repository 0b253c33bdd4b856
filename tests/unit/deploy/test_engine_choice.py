"""Which engine ``auto`` takes, and what it says of those it passes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.deployment import Deployment
from deploy.engines import choose
from deploy.engines.choose import choose_engine
from deploy.errors import RepositoryError


@pytest.fixture(autouse=True)
def _no_container_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "debian"})


def test_without_a_container_engine_it_is_the_one_that_needs_none_and_says_why() -> None:
    choice = choose_engine(Deployment())
    assert choice.engine.name == "local"
    assert choice.reason == (
        "needs no container; "
        "docker: no Docker engine answers at unix:///nowhere.sock, which DOCKER_HOST names "
        "(set it to where one does, or unset it); "
        "apptainer: apptainer is not installed (sudo scripts/install_container_tools)"
    )


def test_apptainer_is_taken_where_its_sif_is_there(tmp_path: Path) -> None:
    """A script stands for Apptainer: it is asked for the labels of a .sif only."""
    labels = (
        '{"data": {"attributes": {"labels": {"org.numlkit.environment.digest": "abc",'
        ' "org.numlkit.flavour": "cpu", "org.numlkit.triton.release": "24.10"}}}}'
    )
    apptainer, sif = tmp_path / "apptainer", tmp_path / "numl.sif"
    apptainer.write_text(f"#!/bin/sh\necho '{labels}'\n")
    apptainer.chmod(0o755)
    sif.touch()
    choice = choose_engine(Deployment(image=str(sif)))
    assert choice.engine.name == "apptainer"
    assert choice.reason is not None
    assert choice.reason.startswith("its .sif is built; docker: no Docker engine answers at ")


def test_what_no_engine_can_mend_is_said_once() -> None:
    """The file belongs to the models, whichever engine serves them."""
    with pytest.raises(RepositoryError) as caught:
        choose_engine(Deployment(checkpoints={"nugraph3": Path("/none.ckpt")}))
    assert caught.value.cause == "/none.ckpt: No such file or directory"


def test_the_one_reason_why_no_engine_starts_a_stock_image_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Nothing:
        def artefact(self, **_: object) -> str:
            raise RepositoryError("/models: Permission denied", "chmod it")

    monkeypatch.setattr(choose, "engine_named", lambda _name: Nothing())
    with pytest.raises(RepositoryError) as caught:
        choose_engine(Deployment(env="packed"))
    assert (caught.value.cause, caught.value.remedy) == ("/models: Permission denied", "chmod it")


@pytest.mark.parametrize("name", ["local", "docker", "apptainer"])
def test_what_is_asked_for_is_taken_without_a_word(name: str) -> None:
    choice = choose_engine(Deployment.model_validate({"engine": name}))
    assert (choice.engine.name, choice.reason) == (name, None)
