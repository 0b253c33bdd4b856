"""An environment takes compiled networks along, as far as they can be had."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.building import networks
from deploy.building.networks import compile_networks, makes_environment
from deploy.environment.compiled import PORTABLE_LEVEL, Compiled
from deploy.errors import EnvironmentSetupError
from deploy.packing.packages import NETWORKS
from deploy.paths import ENVIRONMENT_SOURCE


def test_they_lie_where_the_environment_looks_for_its_own() -> None:
    package = ENVIRONMENT_SOURCE / "numl_serving"
    source = (package / "compiled.py").read_text()
    assert re.findall(r'^OWN_FOLDER = "(.*)"$', source, re.MULTILINE) == [NETWORKS]
    assert f'"{PORTABLE_LEVEL}": ' in (package / "target.py").read_text()


@pytest.fixture
def standard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An environment that is not made; the real one is in the tests of images."""
    made = SimpleNamespace(packages=tmp_path / "packages", ensure=lambda _say: "environment")
    monkeypatch.setattr(networks, "standard_environment", lambda _flavour: made)
    return made


def compiled(level: str | None) -> Compiled:
    return Compiled("a name", (Path(f"/compiled/{level or 'this processor'}"), Path("/compiled/b")))


def test_they_are_compiled_for_any_server_and_for_those_like_this_one(
    standard: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "ensure_compiled", lambda *arguments: compiled(arguments[-1]))
    assert compile_networks("cpu", offline=False, say=print) == (
        Path("/compiled/b"),
        Path("/compiled/this processor"),
        Path("/compiled/x86-64-v3"),
    )


def test_the_environment_that_compiles_takes_room_until_it_is_there(
    standard: SimpleNamespace,
) -> None:
    assert makes_environment("cpu", offline=False)
    assert not makes_environment("cpu", offline=True)
    assert not makes_environment("gpu", offline=False)
    standard.packages.mkdir()
    assert not makes_environment("cpu", offline=False)


def test_an_environment_for_gpus_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "standard_environment", None)
    assert compile_networks("gpu", offline=False, say=print) == ()


def test_without_network_nothing_is_downloaded_for_them(standard: SimpleNamespace) -> None:
    said: list[str] = []
    assert compile_networks("cpu", offline=True, say=said.append) == ()
    assert said == [
        "models run uncompiled, which is slower: without network there is no environment to "
        "compile them in (python3 deploy/prepare.py makes it)"
    ]


def test_a_host_without_a_fitting_python_builds_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(_flavour: str) -> None:
        raise EnvironmentSetupError("no Python 3.11 found", "install it")

    monkeypatch.setattr(networks, "standard_environment", missing)
    said: list[str] = []
    assert compile_networks("cpu", offline=False, say=said.append) == ()
    assert said == ["models run uncompiled, which is slower: no Python 3.11 found"]
