"""The kit's own Python: a channel on disk stands for conda-forge; py-rattler reads both alike."""

import hashlib
import json
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import rattler

from deploy.environment import interpreter as system
from deploy.environment import private_python as module
from deploy.environment.interpreter import no_interpreter
from deploy.environment.private_python import (
    PINS,
    ensure_private_python,
    fetch_if_reachable,
    private_python,
)
from deploy.host.errors import EnvironmentSetupError
from tests.environments import ignore
from tests.unit.deploy.site_repository import write_archive

PLACEHOLDER = "/placeholder" * 10


def make_package(channel: Path, stem: str, files: Mapping[str, str]) -> str:
    """Write a conda package; return its line among the pins."""
    name, version, build = stem.rsplit("-", 2)
    index = {"name": name, "version": version, "build": build, "build_number": 0}
    paths = [
        {
            "_path": path,
            "path_type": "hardlink",
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "size_in_bytes": len(text),
            **({"prefix_placeholder": PLACEHOLDER, "file_mode": "text"} if "/" in text else {}),
        }
        for path, text in files.items()
    ]
    contents = {
        **files,
        "info/index.json": json.dumps({**index, "depends": [], "subdir": "linux-64"}),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}),
    }
    target = channel / "linux-64" / f"{stem}.tar.bz2"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_archive(target, (), kind="bz2", more=contents)
    return f"{hashlib.sha256(target.read_bytes()).hexdigest()}  linux-64/{target.name}\n"


@pytest.fixture
def channel(tmp_path, monkeypatch):
    folder = tmp_path / "channel"
    python = {
        "bin/python3.11": f"#!/bin/sh\necho {PLACEHOLDER}\n",
        "lib/libpython3.11.so.1.0": "library",
    }
    pins = make_package(folder, "python-3.11.15-0_cpython", python)
    pins += make_package(folder, "some-library-1.0-h1", {"lib/libsome.so": "some"})
    (tmp_path / "python.txt").write_text(f"# pins\n{pins}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "PINS", tmp_path / "python.txt")
    monkeypatch.setattr(module, "CHANNEL", folder.as_uri())
    return folder


def test_it_is_known_before_it_is_fetched_once_and_names_the_place_it_is_at(channel):
    assert private_python(("3.12",)) is None
    found = private_python(("3.12", "3.11"))
    assert (found.version, found.short_version, found.private) == ("3.11.15", "3.11", True)
    assert not found.executable.exists()
    ensure_private_python(found, ignore)
    prefix = found.executable.parents[1]
    assert found.executable.read_text() == f"#!/bin/sh\necho {prefix}\n"
    assert found.libpython.read_text() == "library"
    assert (prefix / "lib" / "libsome.so").read_text() == "some"
    for path in (channel / "linux-64").iterdir():
        path.unlink()
    ensure_private_python(found, ignore)


@pytest.mark.parametrize("spoil", ["another file", "not there"])
def test_a_package_that_is_not_the_pinned_one_is_refused(channel, spoil):
    if spoil == "another file":
        make_package(channel, "some-library-1.0-h1", {"lib/libsome.so": "evil"})
    else:
        (channel / "linux-64" / "some-library-1.0-h1.tar.bz2").unlink()
    found = private_python(("3.11",))
    with pytest.raises(
        EnvironmentSetupError, match=r"no Python 3\.11 with .* on this host, and"
    ) as error:
        ensure_private_python(found, ignore)
    assert "\n" not in error.value.cause
    assert not found.executable.exists()


@pytest.fixture
def listener(channel, monkeypatch):
    """A server that never answers, in place of the channel; nobody waits long for it."""
    monkeypatch.setattr(module, "_TIMEOUT", 0.5)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/channel"
        monkeypatch.setattr(module, "CHANNEL", url)
        yield listener


def test_a_channel_that_never_answers_is_given_up(listener):
    said: list[str] = []
    fetch_if_reachable(said.append)
    assert said[-1].endswith("does not answer: using this host's Python")


@pytest.mark.parametrize(
    ("breaks", "reason"), [(True, "breaks off"), (False, "does not answer")], ids=["end", "silence"]
)
def test_a_download_of_python_that_breaks_off_is_an_error_with_a_remedy(listener, breaks, reason):
    """After the first bytes the server closes the connection, or says nothing more."""
    over = threading.Event()

    def answer() -> None:
        with listener.accept()[0] as asked:
            asked.recv(1 << 16)
            asked.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nfirst")
            if not breaks:
                over.wait()

    server = threading.Thread(target=answer)
    server.start()
    found = private_python(("3.11",))
    try:
        with pytest.raises(EnvironmentSetupError) as error:
            ensure_private_python(found, ignore, "a container")
    finally:
        over.set()
        server.join()
    assert error.value.cause.endswith(f"on this host, and {module.CHANNEL} {reason}")
    assert error.value.remedy.endswith("a container")
    assert not found.executable.exists()


def test_every_pin_of_the_kit_names_a_package_of_the_channel():
    lines = [line for line in PINS.read_text().splitlines() if not line.startswith("#")]
    assert module.pins()[0].name == "python"
    assert len(module.pins()) == len(lines) > 10
    assert rattler.Channel(module.CHANNEL).base_url.startswith("https://")


@pytest.mark.parametrize(("programs", "like", "remedy"), [
    ({"apt-get", "apt-cache"}, ["debian"], "sudo apt-get install libpython3.11; or a container"),
    ({"dnf"}, ["rhel", "fedora"], "sudo dnf install python3.11; or a container"),
    ({"zypper"}, ["opensuse", "suse"], "sudo zypper install python311; or a container"),
    ({"pacman"}, ["arch"], "put python3.11, built with --enable-shared, on PATH; or a container"),
])  # fmt: skip
def test_the_remedy_is_one_of_this_distribution(monkeypatch, programs, like, remedy):
    """As if another distribution were here: its programs, and what its package lists say."""
    monkeypatch.setattr(system.shutil, "which", lambda name: name if name in programs else None)
    monkeypatch.setattr(system, "distribution", lambda: {"ID_LIKE": " ".join(like)})
    monkeypatch.setattr(system.Path, "resolve", lambda _self: Path("/usr/bin/python3.11"))
    monkeypatch.setattr(system.Path, "glob", lambda _self, _pattern: iter(["there"]))
    error = no_interpreter(("3.11", "3.12"), "conda-forge does not answer", "a container")
    assert error.cause == (
        "no Python 3.11 or 3.12 with its shared library on this host, and conda-forge does not "
        "answer"
    )
    monkeypatch.undo()
    assert error.remedy == remedy


@pytest.mark.parametrize(
    ("packages", "lists", "remedy"),
    [
        (["x"], True, "sudo apt-get install x"),
        (["x"], False, "sudo apt-get update && sudo apt-get install x"),
        ([], True, None),
        ([], False, "sudo apt-get update, then this command again"),
    ],
)
def test_missing_package_lists_are_fetched_first(monkeypatch, packages, lists, remedy):
    """Without them it is not known that there is no package."""
    monkeypatch.setattr(system, "_debian_packages", lambda _pythons: packages)
    monkeypatch.setattr(system.shutil, "which", lambda name: name if name == "apt-cache" else None)
    there = ["there"] if lists else []
    monkeypatch.setattr(system.Path, "glob", lambda _self, _pattern: iter(there))
    assert system._installation(["3.11"]) == remedy
