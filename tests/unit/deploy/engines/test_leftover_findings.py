"""Processes stand for servers and stubs by their names, files for shared memory."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.deployment.state import ProcessId
from deploy.engines import leftovers
from deploy.engines.leftovers import (
    end_stubs,
    leftover_findings,
    orphaned_stubs,
    remove_regions,
    unused_regions,
)
from deploy.host.errors import KitError

UUID = "0764797d-130d-4b3f-bf06-8b8b9c1baf32"
OTHER = "1764797d-130d-4b3f-bf06-8b8b9c1baf32"
MAP = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    region = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
sys.stdin.read()
"""


def make_region(folder: Path, name: str, age: float = 3600) -> Path:
    path = folder / name
    path.write_bytes(bytes(4096))
    os.utime(path, (time.time() - age,) * 2)
    return path


@contextmanager
def mapped(path: Path) -> Iterator[ProcessId]:
    """Let a process have a file in its memory."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAP, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield ProcessId.of(process.pid)
    finally:
        process.communicate()


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A folder that stands for shared memory; scratch folders are elsewhere, too."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "shm"


def test_regions_that_no_process_has_in_its_memory_are_nobody_s(shared):
    prefix = f"numlkit-{os.getuid()}-0a1b2c3d"
    dead = make_region(shared, f"{prefix}-numl-{UUID}")
    of_an_image = make_region(shared, f"{prefix}-{UUID}")
    alive = make_region(shared, f"{prefix}-numl-{OTHER}")
    for name, age in (
        (f"{prefix}-young-{UUID}", 5),
        (f"numlkit-{os.getuid() + 1}-0a1b2c3d-numl-{UUID}", 3600),
        (f"triton_python_backend_shm_region_{UUID}", 3600),
        (f"{prefix}-notes.txt", 3600),
    ):
        make_region(shared, name, age)
    with mapped(alive):
        assert set(unused_regions()) == {of_an_image, dead}
    assert set(unused_regions()) == {of_an_image, dead, alive}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_region_of_another_user_is_never_taken_for_one_s_own(shared):
    region = make_region(shared, f"numlkit-{os.getuid()}-0a1b2c3d-numl-{UUID}")
    assert unused_regions() == (region,)
    os.chown(region, 12345, -1)
    assert unused_regions() == ()


def test_if_one_process_does_not_tell_what_it_uses_no_region_is_nobody_s(shared, monkeypatch):
    make_region(shared, f"numlkit-{os.getuid()}-0a1b2c3d-numl-{UUID}")
    monkeypatch.setattr(leftovers, "_maps_of_this_user", lambda without: iter([b"", None]))
    assert unused_regions() == ()


def test_removing_regions_looks_again(shared):
    dead, revived = (
        make_region(shared, f"numlkit-{os.getuid()}-0a1b2c3d-numl-{uuid}") for uuid in (UUID, OTHER)
    )
    with mapped(revived), pytest.raises(KitError, match=f"{revived} is in use again"):
        remove_regions((dead, revived))
    assert not dead.exists()
    assert revived.exists()
    assert remove_regions((dead, revived)) == f"removed 2 shared memory regions from {shared}"
    assert not revived.exists()


@contextmanager
def stub(folder: Path, *, parent: str) -> Iterator[ProcessId]:
    """Run a process that looks like a stub, below one with the name ``parent``."""
    shell = shutil.which("sh")
    assert shell
    for name in (parent, "triton_python_backend_stub"):
        shutil.copy(shell, folder / name)
    script = folder / "model_repository" / "nugraph3" / "1" / "model.py"
    script.parent.mkdir(parents=True)
    script.write_text("echo $$\nread nothing\n")
    region = f"numlkit-{os.getuid()}-0a1b2c3d-numl-{UUID}"
    words = [str(folder / "triton_python_backend_stub"), str(script), region]
    process = subprocess.Popen(
        [str(folder / parent), "-c", '"$0" "$@"; true', *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield ProcessId.of(int(process.stdout.readline()))
    finally:
        process.communicate(b"\n")


def test_a_stub_with_a_server_is_left_alone(tmp_path):
    with stub(tmp_path, parent="tritonserver") as process:
        assert process not in orphaned_stubs()


def test_a_stub_whose_server_is_dead_is_ended(tmp_path):
    with stub(tmp_path, parent="somebody") as process:
        assert process in orphaned_stubs()
        assert end_stubs((process,)) == "stopped 1 model process without a server"
        assert process.process() is None


def test_what_only_an_orphaned_stub_uses_is_nobody_s(shared, monkeypatch):
    region = make_region(shared, f"numlkit-{os.getuid()}-0a1b2c3d-numl-{UUID}")
    with mapped(region) as process:
        assert unused_regions() == ()
        monkeypatch.setattr(leftovers, "orphaned_stubs", lambda: (process,))
        assert unused_regions() == (region,)


def test_what_is_found_can_be_fixed_only_where_all_processes_are_seen(shared, monkeypatch):
    region = make_region(shared, f"numlkit-{os.getuid()}-0a1b2c3d-numl-{UUID}")
    monkeypatch.setattr(leftovers, "orphaned_stubs", lambda: ())
    monkeypatch.setattr(leftovers, "unused_regions", lambda: (region,))
    monkeypatch.setattr(leftovers, "sees_all_processes", lambda: True)
    assert [f.fix is not None for f in leftover_findings()] == [True]
    monkeypatch.setattr(leftovers, "sees_all_processes", lambda: False)
    assert [f.fix for f in leftover_findings()] == [None]


def test_scratch_folders_that_no_deployment_knows_are_left_to_their_owner(
    shared, tmp_path, monkeypatch
):
    """They may be those of a Triton that is not the kit's, and of another checkout's kit."""
    monkeypatch.setattr(leftovers, "SCRATCH", tmp_path)
    (tmp_path / "python_env_aB3xYz" / "0").mkdir(parents=True)
    monkeypatch.setattr(leftovers, "orphaned_stubs", lambda: ())
    assert list(leftover_findings()) == []
