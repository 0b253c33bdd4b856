"""What goes from the cache after a build, and what stays."""

import json
import os
from pathlib import Path

import pytest

from deploy.files import locked
from deploy.packing.cache import KEPT, clear_cache


def make_package(cache: Path, recipe: str, stem: str, size: int = 1000) -> Path:
    folder = cache / "packages" / recipe
    unpacked = folder / "unpacked" / stem
    unpacked.mkdir(parents=True)
    (unpacked / "file").write_bytes(bytes(size))
    unpacked.with_name(f"{stem}.lock").touch()
    record = folder / "channel" / "linux-64" / f"{stem}.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.touch()
    return unpacked


def make_environment(cache: Path, name: str, *packages: Path, age: int) -> Path:
    """An environment whose files are hard links to its packages', as py-rattler makes it."""
    prefix = cache / "prefixes" / name
    for package in packages:
        record = prefix / "conda-meta" / f"{package.name}.json"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({"extracted_package_dir": str(package)}))
        (prefix / package.name).hardlink_to(package / "file")
    lock = prefix.with_suffix(".lock")
    lock.touch()
    os.utime(lock, (1000 - age, 1000 - age))
    return prefix


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Four environments of two recipes; the oldest alone needs two of the packages."""
    torch = make_package(tmp_path, "new", "torch-2")
    for age, name in enumerate(("a", "b", "c")):
        own = make_package(tmp_path, "new", f"serving-{name}")
        make_environment(tmp_path, name, torch, own, age=age)
    old = (make_package(tmp_path, "old", "torch-1"), make_package(tmp_path, "old", "serving-d"))
    make_environment(tmp_path, "d", *old, age=3)
    return tmp_path


def test_the_newest_environments_stay_with_the_packages_they_need(cache: Path) -> None:
    unneeded = make_package(cache, "new", "torch-0", size=5000)
    assert KEPT == 3
    removed = clear_cache(cache)
    assert names(cache / "prefixes") == ["a", "b", "c"]
    assert names(cache / "packages") == ["new"]
    assert names(cache / "packages/new/unpacked") == [
        "serving-a", "serving-b", "serving-c", "torch-2"
    ]  # fmt: skip
    assert not (cache / "packages/new/channel/linux-64/torch-0.json").exists()
    assert not unneeded.with_name("torch-0.lock").exists()
    assert removed.names == (
        "prefixes/d",
        "packages/new/unpacked/torch-0",
        "packages/old/unpacked/serving-d",
        "packages/old/unpacked/torch-1",
        "packages/old",
    )
    # Bytes with two names count once; records count as well.
    assert 7000 <= removed.bytes < 8000


def test_nothing_more_goes_the_next_time(cache: Path) -> None:
    clear_cache(cache)
    assert clear_cache(cache).names == ()


def test_the_one_used_last_stays_however_old_it_is(cache: Path) -> None:
    with locked(cache / "prefixes" / "d.lock"):
        pass
    clear_cache(cache)
    assert names(cache / "prefixes") == ["a", "b", "d"]
    assert names(cache / "packages") == ["new", "old"]


def test_what_a_build_holds_at_the_moment_stays(cache: Path) -> None:
    prefix = make_environment(cache, "e", make_package(cache, "new", "serving-e"), age=9)
    with locked(cache / "packages" / "old.lock"), locked(prefix.with_suffix(".lock")):
        os.utime(prefix.with_suffix(".lock"), (0, 0))
        clear_cache(cache)
    assert names(cache / "prefixes") == ["a", "b", "c", "e"]
    assert "old" in names(cache / "packages")
    assert "serving-e" in names(cache / "packages/new/unpacked")


def test_wheels_of_the_locks_used_last_stay(tmp_path: Path) -> None:
    for age in range(5):
        folder = tmp_path / "wheels" / str(age)
        folder.mkdir(parents=True)
        (folder / "a.whl").write_bytes(bytes(10))
        lock = folder.with_suffix(".lock")
        lock.touch()
        os.utime(lock, (1000 - age, 1000 - age))
    removed = clear_cache(tmp_path)
    assert names(tmp_path / "wheels") == ["0", "1", "2"]
    assert (removed.names, removed.bytes) == (("wheels/3", "wheels/4"), 20)


def test_a_cache_that_is_not_there_needs_no_clearing(tmp_path: Path) -> None:
    assert clear_cache(tmp_path / "none").names == ()
    assert not (tmp_path / "none").exists()


def test_what_conda_forge_gave_stays(cache: Path) -> None:
    (cache / "packages" / "downloaded" / "python-3.11").mkdir(parents=True)
    clear_cache(cache)
    assert "downloaded" in names(cache / "packages")
