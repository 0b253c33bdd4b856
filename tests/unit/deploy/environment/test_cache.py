"""What goes from the cache after a build, and what stays."""

import os
import time
from pathlib import Path

import pytest

from deploy.environment.cache import KEPT, RECENT_S, clear_cache
from deploy.host.files import locked


def make(folder: Path, *, age: int, size: int = 1000) -> Path:
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(bytes(size))
    lock = folder.with_suffix(".lock")
    lock.touch()
    os.utime(lock, (1000 - age, 1000 - age))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


@pytest.fixture
def cache(tmp_path):
    """Four environments; the files of the oldest are hard links to its packages'."""
    for age, name in enumerate("abcd"):
        packages = make(tmp_path / "relocatable" / f"cpu-packages-{name}", age=age)
        whole = make(tmp_path / "relocatable" / f"cpu-{name}", age=age, size=10)
        (whole / "linked").hardlink_to(packages / "file")
    return tmp_path


def test_the_environments_used_last_stay_and_what_no_build_made(cache):
    assert KEPT == 3
    for name in ("notes", "cpu-packages-mine"):
        (cache / "relocatable" / name).mkdir()
    assert clear_cache(cache) == (
        ["relocatable/cpu-d", "relocatable/cpu-packages-d"],
        1010,  # what has two names counts once
    )
    kept = [f"{kind}-{name}" for kind in ("cpu", "cpu-packages") for name in "abc"]
    assert names(cache / "relocatable") == sorted([*kept, "notes", "cpu-packages-mine"])
    assert not (cache / "relocatable" / "notes.lock").exists()
    assert clear_cache(cache) == ([], 0), "nothing more goes the next time"


def test_the_one_used_last_stays_however_old_it_is(cache):
    with locked(cache / "relocatable" / "cpu-d.lock"):
        pass
    assert clear_cache(cache)[0] == ["relocatable/cpu-c", "relocatable/cpu-packages-d"]


def test_what_a_build_holds_at_the_moment_stays(cache):
    with locked(cache / "relocatable" / "cpu-d.lock"):
        os.utime(cache / "relocatable" / "cpu-d.lock", (0, 0))
        assert clear_cache(cache)[0] == ["relocatable/cpu-packages-d"]


def test_what_another_build_has_taken_a_while_ago_stays(cache):
    taken = time.time() - RECENT_S / 2
    os.utime(cache / "relocatable" / "cpu-d.lock", (taken, taken))
    for name in "abc":
        os.utime(cache / "relocatable" / f"cpu-{name}.lock")
    assert clear_cache(cache)[0] == ["relocatable/cpu-packages-d"]


@pytest.mark.parametrize(
    ("kind", "removed"),
    [("environments", []), ("serving", ["3", "4"]), ("sync", ["3", "4"])],
    ids=["environments that servers run in", "wheels", "sync agents"],
)
def test_of_what_can_be_in_use_all_and_else_those_used_last_stay(tmp_path, kind, removed):
    for age in range(5):
        make(tmp_path / kind / str(age), age=age, size=10)
    assert clear_cache(tmp_path) == ([f"{kind}/{name}" for name in removed], 10 * len(removed))


def test_a_cache_that_is_not_there_needs_no_clearing(tmp_path):
    assert clear_cache(tmp_path / "none") == ([], 0)
    assert not (tmp_path / "none").exists()
