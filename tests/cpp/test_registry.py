"""The C++ client and a folder that names servers which come and go."""

import ctypes
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from deploy.client.registry import Registry
from tests import registries
from tests.cpp.scripted import BUSY, scripted
from tests.inputs import EVENTS
from tests.programs import run_program


def test_servers_are_named_by_the_same_files_as_in_python(program, tmp_path):
    registries.make(tmp_path / "servers")
    words = [program.parent / "numl_tests", tmp_path / "servers"]
    done = run_program(words, timeout=60, check=True)
    assert tuple(done.stdout.splitlines()) == registries.SERVERS


def test_a_server_that_leaves_costs_no_request_and_a_new_one_gets_them(label, tmp_path):
    registry = Registry(tmp_path / "servers")
    asked = threading.Event()
    after_leaving: list[int] = []

    def old_says(number: int) -> None:
        if number == 5:
            (registry.folder / "broken.json").write_text('{"url": "grpc://127.0.0.1')
            registry.enter(f"grpc://{new.address}")
            registry.leave(entry)
        if asked.is_set():
            after_leaving.append(number)
        time.sleep(0.01)  # what an answer takes

    def new_says(_: int) -> None:
        asked.set()

    with scripted(old_says) as old, scripted(new_says) as new:
        entry = registry.enter(f"grpc://{old.address}")
        done = label("--servers", registry.folder, "--json", "--repeat", 250, EVENTS)
    told = json.loads(done.stdout)
    assert (told["events"], told["failed"], told["retries"]) == (1250, 0, 0), done.stderr
    assert len(old.requests) + len(new.requests) == 1250
    assert asked.is_set()
    assert len(after_leaving) < 8  # those that were in flight


def test_events_that_wait_go_to_a_server_that_comes(label, tmp_path):
    registry = Registry(tmp_path / "servers")

    def busy_says(number: int) -> tuple[grpc.StatusCode, str]:
        if number == 0:
            registry.enter(f"grpc://{new.address}")
        return BUSY

    with scripted(busy_says) as busy, scripted() as new:
        registry.enter(f"grpc://{busy.address}")
        done = label("--servers", registry.folder, "--json", EVENTS)
    assert json.loads(done.stdout)["events"] == len(new.requests) == 5, done.stderr


@pytest.fixture
def _no_leak_check(monkeypatch):
    """A search for leaks stops all threads first, and one that waits for the system it cannot."""
    monkeypatch.setenv("LSAN_OPTIONS", "detect_leaks=0")


@contextmanager
def _hung(folder: Path) -> Iterator[None]:
    """A file system that answers nothing, as of a server that is away."""
    libc = ctypes.CDLL(None)
    folder.mkdir()
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        pytest.skip("no FUSE here")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    mounted = libc.mount(b"hung", bytes(folder), b"fuse", 0, options) == 0
    try:
        if not mounted:
            pytest.skip("no mount is allowed here")
        yield
    finally:
        os.close(device)  # what waits gets an error
        if mounted:
            libc.umount2(bytes(folder), 2)  # MNT_DETACH


@pytest.mark.usefixtures("_no_leak_check")
def test_a_folder_that_hangs_at_the_start_is_told_at_the_deadline(label, tmp_path):
    with _hung(tmp_path / "hung"):
        done = label("--servers", tmp_path / "hung", "--timeout", 0.5, EVENTS)
    assert done.returncode == 1
    assert done.stderr == f"numl-label: {tmp_path}/hung cannot be read within 0.5 s\n"


@pytest.mark.usefixtures("_no_leak_check")
def test_a_folder_that_hangs_later_holds_up_no_request(label, tmp_path):
    folder = tmp_path / "servers"
    registry = Registry(tmp_path / "good")

    def says(number: int) -> None:
        if number == 5:
            (tmp_path / "new").symlink_to("hung")
            (tmp_path / "new").replace(folder)
        time.sleep(0.01)  # what an answer takes

    with _hung(tmp_path / "hung"), scripted(says) as server:
        registry.enter(f"grpc://{server.address}")
        folder.symlink_to("good")
        done = label("--servers", folder, "--json", "--repeat", 250, EVENTS)
    told = json.loads(done.stdout)
    assert (told["events"], told["failed"]) == (1250, 0), done.stderr


@pytest.mark.parametrize(
    ("url", "flags", "status", "said"),
    [
        (None, (), 1, "{0} names no server (numlkit status shows why)"),
        ("grpc://h:1", ("--url", "h"), 2, "give servers, or a folder that names them"),
        ("grpc://h:1", ("--token-file", "t"), 2, "grpc://h:1 is without TLS, but certificates"),
    ],
)
def test_what_cannot_be_followed_is_told(label, tmp_path, url, flags, status, said):
    if url:
        Registry(tmp_path).enter(url)
    done = label("--servers", tmp_path, *flags, EVENTS)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("numl-label: " + said.format(tmp_path))
