"""Which locks of an environment are found, and what is said where one is missing."""

import sys
from pathlib import Path

import pytest

from deploy.environment import environment as module
from deploy.environment.environment import plan_environment
from deploy.environment.interpreter import Interpreter
from deploy.environment.sources import find_source, locked_flavour
from deploy.host.errors import EnvironmentSetupError


@pytest.fixture
def source(tmp_path, monkeypatch):
    """An environment beside a model repository, without locks; this host has every Python."""

    def find(pythons):
        return Interpreter(Path(sys.executable), f"{pythons[0]}.99", Path(sys.executable))

    monkeypatch.setattr(module, "find_interpreter", find)
    monkeypatch.setattr(module, "private_python", lambda _pythons: None)
    folder = tmp_path / "envs" / "vision"
    (folder / "locks").mkdir(parents=True)
    (folder / "requirements.in").touch()
    return folder


def lock(source: Path, *names: str) -> None:
    for name in names:
        (source / "locks" / f"{name}.txt").write_text("numpy==1.26.4\n")


@pytest.mark.parametrize("name", ["cpu", "cpu-3.12", "gpu", "gpu-3.12"])
def test_a_lock_of_whichever_flavour_and_python_is_found(source, tmp_path, name):
    lock(source, name)
    assert find_source("vision", tmp_path / "models") == source
    flavour = locked_flavour(source, name.partition("-")[0])
    planned = plan_environment(flavour, source=source, relocatable=True)
    assert planned.lock.packages == source / "locks" / f"{name}.txt"


def test_without_any_the_command_that_locks_it_is_told(source, tmp_path):
    lock(source, "torch-cpu", "cpu-3.12-old")
    with pytest.raises(EnvironmentSetupError) as caught:
        find_source("vision", tmp_path / "models")
    assert caught.value.cause == f"{source} has no lock"
    assert caught.value.remedy == f"numlkit lock {source}"


def test_servers_on_gpus_have_the_packages_that_are_locked_for_them_for_whichever_python(source):
    lock(source, "cpu", "cpu-3.12", "gpu-3.12")
    assert locked_flavour(source, "gpu") == "gpu"
    assert locked_flavour(source, "cpu") == "cpu"
    planned = plan_environment("gpu", source=source, relocatable=True, stub="3.12")
    assert planned.lock.packages == source / "locks" / "gpu-3.12.txt"
    (source / "locks" / "gpu-3.12.txt").unlink()
    assert locked_flavour(source, "gpu") == "cpu"


@pytest.mark.parametrize(
    ("locks", "flavour", "stub", "cause", "remedy"),
    [
        (["gpu"], "cpu", None, "{source} has no lock of flavour cpu", "numlkit lock {source}"),
        (["cpu", "gpu-3.10"], "gpu", "3.12",
         "flavour gpu is locked for Python 3.10; this Triton's stub is built for 3.12",
         "use a Triton whose stub is for one of them, or numlkit lock {source} --flavour gpu "
         "--triton with this one"),
        (["cpu-3.13"], "cpu", None,
         "flavour cpu is locked for Python 3.13; this Triton's stub for that cannot be packed",
         "use a Triton whose stub is for one of them, or numlkit lock {source} --triton with this "
         "one"),
    ],
)  # fmt: skip
def test_a_lock_for_another_python_or_flavour_is_told_with_the_command_that_makes_one(
    source, locks, flavour, stub, cause, remedy
):
    lock(source, *locks)
    with pytest.raises(EnvironmentSetupError) as caught:
        plan_environment(flavour, source=source, relocatable=True, stub=stub)
    assert caught.value.cause == cause.format(source=source)
    assert caught.value.remedy == remedy.format(source=source)
