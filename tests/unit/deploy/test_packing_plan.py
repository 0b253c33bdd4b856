"""What an environment is made of, decided before anything is made."""

import sys
from pathlib import Path

import pytest

from deploy.environment.interpreter import Interpreter
from deploy.errors import EnvironmentSetupError
from deploy.packing import plan
from deploy.packing.channel import ChannelError, ChannelInterpreter
from deploy.packing.plan import plan_build

FOUND = Interpreter(Path(sys.executable), "3.11.99", Path(sys.executable))
CHANNEL = ChannelInterpreter("conda-forge", "3.11.98", ())


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """conda-forge answers, but the network is not there: both are set per test."""
    monkeypatch.setattr(plan, "find_interpreter", lambda _wanted: FOUND)
    monkeypatch.setattr(plan, "find_in_channel", lambda _channel, _wanted: CHANNEL)


def unreachable(channel: str, _wanted: str) -> ChannelInterpreter:
    raise ChannelError(f"conda channel {channel} does not answer")


def planned(
    wheels: Path | None = None, channel: str | None = None
) -> Interpreter | ChannelInterpreter:
    build = plan_build(flavour="cpu", wheels=wheels, python=None, channel=channel)
    return build.interpreter


def test_the_interpreter_is_a_channels_if_one_answers() -> None:
    assert planned() is CHANNEL


def test_else_it_is_one_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "find_in_channel", unreachable)
    assert planned() is FOUND


def test_with_wheels_given_no_channel_is_asked(tmp_path: Path) -> None:
    assert planned(wheels=tmp_path) is FOUND


def test_a_channel_that_was_asked_for_must_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert planned(channel="conda-forge", wheels=tmp_path) is CHANNEL
    monkeypatch.setattr(plan, "find_in_channel", unreachable)
    with pytest.raises(ChannelError, match="mine does not answer"):
        planned(channel="mine")


def test_the_digest_names_the_inputs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = plan_build(flavour="cpu", wheels=None, python=None)
    assert plan_build(flavour="cpu", wheels=tmp_path, python=None).digest != first.digest
    assert plan_build(flavour="gpu", wheels=None, python=None).digest != first.digest
    assert plan_build(flavour="cpu", wheels=None, python=None).digest == first.digest
    assert first.prefix.name == first.digest[:16]
    source = tmp_path / "numl"
    (source / "numl_serving").mkdir(parents=True)
    for path in (source / "pyproject.toml", source / "numl_serving" / "x.py"):
        path.write_text("")
    (source / "locks").symlink_to(first.source / "locks")
    monkeypatch.setattr(plan, "ENVIRONMENT_SOURCE", source)
    other = plan_build(flavour="cpu", wheels=None, python=None)
    assert other.recipe == first.recipe
    (source / "numl_serving" / "x.py").write_text("1")
    assert plan_build(flavour="cpu", wheels=None, python=None).digest != other.digest


def script(folder: Path, text: str) -> Path:
    path = folder / "python3.11"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_python_that_is_given_is_taken() -> None:
    build = plan_build(flavour="cpu", wheels=None, python=Path(sys.executable))
    assert isinstance(build.interpreter, Interpreter)
    assert build.interpreter.version == ".".join(map(str, sys.version_info[:3]))
    assert build.interpreter.libpython.name == "libpython3.11.so.1.0"
    assert build.interpreter.executable.resolve() == Path(sys.executable).resolve()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("exit 1", "does not run as a Python"),
        ("echo hello", "does not run as a Python"),
        (
            """echo '[[3, 12, 1], "/p", "/usr", "/lib", "", ""]'""",
            r"is Python 3\.12\.1, .* for 3\.11",
        ),
        ("""echo '[[3, 11, 1], "/p", "/n", "/n", "", "n"]'""", r"has no shared libpython3\.11,"),
    ],
)
def test_a_python_that_is_given_must_be_fit(tmp_path: Path, text: str, reason: str) -> None:
    """A script stands for a Python that this host does not have."""
    with pytest.raises(EnvironmentSetupError, match=reason):
        plan_build(flavour="cpu", wheels=None, python=script(tmp_path, text))


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="python: No such file or directory"):
        plan_build(flavour="cpu", wheels=None, python=tmp_path / "python")


def test_a_folder_of_wheels_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="nowhere: no such folder"):
        plan_build(flavour="cpu", wheels=tmp_path / "nowhere", python=None)
