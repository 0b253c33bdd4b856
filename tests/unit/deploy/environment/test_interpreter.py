"""Which Python of a host is taken, and which of its packages are named."""

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from deploy.environment import interpreter as module
from deploy.environment.interpreter import find_interpreter, given_interpreter
from deploy.host.errors import EnvironmentSetupError
from tests.programs import write_program


@pytest.fixture
def candidate(tmp_path, monkeypatch):
    """A release candidate, as Ubuntu 22.04 has one of Python 3.11: torch cannot be imported."""
    pretend = "import sys; sys.version_info = (3, 11, 0, 'candidate', 1); exec(sys.argv[1])"
    script = f'exec {sys.executable} -I -c "{pretend}" "$3"'
    program = write_program(tmp_path / "python3.11", script)
    monkeypatch.setattr(module, "_candidates", lambda _wanted: [program])
    return program


def test_a_pre_release_is_passed_over_and_refused_if_it_is_given(candidate):
    assert find_interpreter(["3.11"]) is None
    with pytest.raises(EnvironmentSetupError) as caught:
        given_interpreter(candidate, ["3.11"])
    assert caught.value.cause == f"{candidate} is Python 3.11.0 candidate 1, a pre-release"


def test_a_python_is_looked_for_also_for_a_user_without_a_home(monkeypatch):
    for name in ("HOME", "PYENV_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))
    assert find_interpreter(["3.0"]) is None


LISTED = """\
libpython3.10 | 3.10.12-1~22.04.11 | http://archive.example.org jammy-updates/main amd64 Packages
libpython3.10 | 3.10.4-3 | http://archive.example.org jammy/main amd64 Packages
libpython3.11 | {version} | http://archive.example.org jammy-updates/universe amd64 Packages
"""
CANDIDATE = "3.11.0~rc1-1~22.04.1"


@pytest.mark.parametrize(
    ("version", "wanted", "packages"),
    [
        ("3.11.14-1+jammy1", "3.11 3.12", "python3.11 python3.11-venv libpython3.11"),
        (CANDIDATE, "3.11 3.12", ""),
        (CANDIDATE, "3.11 3.12 3.10", "python3.10 python3.10-venv libpython3.10"),
    ],
)
def test_of_what_is_listed_the_best_that_is_no_pre_release_is_named(
    monkeypatch, version, wanted, packages
):
    listed = SimpleNamespace(stdout=LISTED.format(version=version))
    monkeypatch.setattr(module.subprocess, "run", lambda *_words, **_named: listed)
    monkeypatch.setattr(module.Path, "resolve", lambda _self: Path("/usr/bin/python3.9"))
    assert module._debian_packages(wanted.split()) == packages.split()
