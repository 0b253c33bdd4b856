"""A lock made from a specification: the real pip, small wheels, no network."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.commands import lock as command
from deploy.commands.lock import main
from deploy.environment import locking
from deploy.environment.lock import read_lock
from deploy.triton.release import find_release
from tests.unit.deploy.environment.wheels import make_wheel

WHEELS = {
    "numpy-1.26.4-py3-none-any.whl": "",
    "numpy-2.3.0-py3-none-any.whl": "",
    "vision-1.0-py3-none-any.whl": "Requires-Dist: numpy\n",
    "weights-3.0-py3-none-any.whl": "Requires-Dist: windows\n",
    "torch-2.13.0+cpu-py3-none-any.whl": "",
}


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder of wheels: all that pip finds."""
    folder = tmp_path / "wheels"
    for file, needs in WHEELS.items():
        make_wheel(folder, file, needs=needs)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def specify(tmp_path: Path, **files: str) -> Path:
    source = tmp_path / "envs" / "site"
    source.mkdir(parents=True)
    for name, text in files.items():
        (source / f"{name}.in").write_text(text)
    return source


def test_a_lock_has_what_is_named_and_a_numpy_that_the_stubs_can_use(wheels, tmp_path, capsys):
    source = specify(tmp_path, requirements="vision\n", data="weights==3.0\n")
    assert main([str(source), "--quiet"]) == 0
    path = source / "locks" / "cpu.txt"
    assert capsys.readouterr().out == f"{path}\n"
    hashes = {f: hashlib.sha256((wheels / f).read_bytes()).hexdigest() for f in WHEELS}
    assert path.read_text() == (
        "# The environment site, flavour cpu: Python 3.11, Linux x86-64\n"
        "# Made by numlkit lock; do not edit.\n"
        "numpy==1.26.4 \\\n"
        f"    --hash=sha256:{hashes['numpy-1.26.4-py3-none-any.whl']}\n"
        "vision==1.0 \\\n"
        f"    --hash=sha256:{hashes['vision-1.0-py3-none-any.whl']}\n"
        "weights==3.0 \\\n"
        f"    --hash=sha256:{hashes['weights-3.0-py3-none-any.whl']}\n"
    )


def test_a_lock_is_for_the_python_and_the_numpy_of_the_triton_that_is_named(
    wheels, tmp_path, monkeypatch
):
    release = replace(find_release("24.10"), server="2.52.0", python="3.12", wheel=None)
    here = locking.find_interpreter(("3.11",))
    asked = []
    monkeypatch.setattr(locking, "find_interpreter", lambda pythons: asked.append(pythons) or here)
    monkeypatch.setattr(command, "find_triton", lambda _name, _say: release)
    source = specify(tmp_path, requirements="vision\ntorch\n")
    assert main([str(source), "--triton", "24.11", "--quiet"]) == 0
    assert asked == [("3.12",)]
    locks = source / "locks"
    assert sorted(path.name for path in locks.iterdir()) == ["cpu-3.12.txt", "torch-cpu-3.12.txt"]
    found = read_lock(locks, "cpu", "3.12").versions
    assert found == {"numpy": "2.3.0", "vision": "1.0", "torch": "2.13.0+cpu"}


def test_torch_is_locked_apart_and_leaves_its_lock_when_it_is_not_named_any_more(wheels, tmp_path):
    source = specify(tmp_path, requirements="vision\ntorch==2.13.0+cpu\n")
    other = source / "locks" / "torch-gpu.txt"
    other.parent.mkdir()
    other.write_text("torch==2.13.0\n")
    assert main([str(source), "--quiet"]) == 0
    lock = read_lock(source / "locks", "cpu")
    assert lock.versions == {"numpy": "1.26.4", "vision": "1.0", "torch": "2.13.0+cpu"}
    assert lock.torch == source / "locks" / "torch-cpu.txt"
    assert lock.hashes.keys() == lock.versions.keys()
    (source / "requirements.in").write_text("vision\n")
    assert main([str(source), "--quiet"]) == 0
    assert read_lock(source / "locks", "cpu").versions == {"numpy": "1.26.4", "vision": "1.0"}
    assert other.exists()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "requirements.in: no such file"),
        ({"requirements": "nonesuch\n"}, "pip finds no versions that fit: "),
        ({"requirements": "{wheels}/vision-1.0-py3-none-any.whl\n"},
         "vision is named by its place, which a lock cannot hold: file://{wheels}/vision-1.0"),
    ],
)  # fmt: skip
def test_what_cannot_be_locked_is_said_and_nothing_is_written(
    wheels, tmp_path, capsys, files, says
):
    named = {name: text.format(wheels=wheels) for name, text in files.items()}
    source = specify(tmp_path, **named)
    assert main([str(source), "--quiet"]) == 1
    assert says.format(wheels=wheels) in capsys.readouterr().err
    assert not (source / "locks").exists()
