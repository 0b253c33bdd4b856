import errno
import fcntl
import os
import threading
import time
from contextlib import nullcontext
from unittest.mock import Mock

import pytest

from deploy.host.files import (
    built_folder,
    digest_of,
    link_or_copy,
    locked,
    sha256_of,
    unless_locked,
    work_folder,
    write_atomically,
)


@pytest.mark.parametrize("folder_for", [work_folder, built_folder])
def test_nothing_is_left_of_a_build_that_ends_early(tmp_path, folder_for):
    out = tmp_path / "dist" / "numl.sif"

    def interrupted() -> None:
        with folder_for(out) as scratch:
            (scratch / "half").write_text("x")
            (scratch / "closed").mkdir(mode=0o500)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(out.parent.iterdir()) == []


def test_a_folder_replaces_the_one_before_and_clears_interrupted_builds(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").write_text("x")
    (tmp_path / ".numlkit.out.abcd1234.partial").mkdir()
    with built_folder(target) as folder:
        (folder / "new").write_text("x")
    assert [p.name for p in target.iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("number", "copied"),
    [(errno.EXDEV, True), (errno.EPERM, True), (errno.EOPNOTSUPP, True), (errno.EMLINK, True),
     (errno.ENOSYS, True), (errno.ENOSPC, False)],
)  # fmt: skip
def test_a_file_is_copied_where_it_can_have_no_hard_link(tmp_path, monkeypatch, number, copied):
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_text("x")
    source.chmod(0o750)
    link_or_copy(str(source), str(target))
    assert target.samefile(source)
    target.unlink()
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(number, os.strerror(number))))
    with nullcontext() if copied else pytest.raises(OSError, match="No space left"):
        link_or_copy(str(source), str(target))
    assert target.exists() == copied
    if copied:
        assert (target.read_text(), target.stat().st_mode & 0o777) == ("x", 0o750)
        assert not target.samefile(source)


def test_what_a_killed_build_left_is_removed_and_other_files_stay(tmp_path):
    stale = tmp_path / ".numlkit.numl[1].sif.abcd1234.partial"
    others = {
        ".numlkit.other.sif.abcd1234.partial",
        ".numlkit.numl[1].sif.sha256.abcd1234.partial",  # of a build of numl[1].sif.sha256
        ".numl[1].sif.abcd1234.partial",
    }
    for name in (stale.name, *others):
        (tmp_path / name).mkdir()
    (tmp_path / "numl[1].sif").write_text("older")
    with work_folder(tmp_path / "numl[1].sif"):
        assert not stale.exists()
    assert {p.name for p in tmp_path.iterdir()} == {"numl[1].sif", *others}


def test_a_text_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_digest_depends_on_names_and_contents(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("abc")
    b.write_text("2")
    assert sha256_of(a).startswith("ba7816bf")
    one = digest_of([a, b], base=tmp_path)
    assert one == digest_of([b, a], base=tmp_path)
    b.write_text("3")
    assert one != digest_of([a, b], base=tmp_path)


def test_who_waits_for_a_lock_is_told_so_once(tmp_path):
    told: list[str] = []

    def hold() -> None:
        with locked(tmp_path / "lock", waiting=lambda: told.append("waits")):
            told.append("holds")

    with locked(tmp_path / "lock", waiting=lambda: told.append("first")):
        other = threading.Thread(target=hold)
        other.start()
        while not told:
            time.sleep(0.01)
        assert told == ["waits"]
    other.join()
    assert told == ["waits", "holds"]


@pytest.mark.parametrize("goes", ["file", "folder"])
def test_who_waited_for_a_lock_that_was_removed_holds_the_one_that_others_find(tmp_path, goes):
    lock = tmp_path / "folder" / "lock"
    free: list[bool] = []

    def wait() -> None:
        with locked(lock, waiting=waits.set), unless_locked(lock) as found:
            free.append(found)

    waits = threading.Event()
    with locked(lock):
        other = threading.Thread(target=wait)
        other.start()
        assert waits.wait(10)
        lock.unlink()
        if goes == "folder":
            lock.parent.rmdir()
    other.join(10)
    assert free == [False]


def test_what_goes_wrong_under_a_lock_is_not_taken_for_a_lock_that_is_gone(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "lock"):
        (tmp_path / "none").read_text()


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    refused = OSError(errno.ENOSYS, "Function not implemented")
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=refused))
    for lock in (locked, unless_locked):
        with pytest.raises(OSError, match="cannot be locked") as caught, lock(tmp_path / "lock"):
            pass
        assert caught.value.filename == str(tmp_path / "lock")
