"""Disk space, memory and folders, judged before anything is written."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.host import room
from deploy.host.errors import BuildError
from deploy.host.room import (
    FileSystem,
    Room,
    check_memory,
    check_room,
    check_temporary_folder,
    check_writable,
    file_system_of,
)

GB = 10**9


def _room(folder: str, gigabytes: float, purpose: str = "layers") -> Room:
    return Room(Path(folder), int(gigabytes * GB), purpose, f"set {folder.upper()}")


def test_what_goes_to_one_file_system_is_added_up(monkeypatch):
    monkeypatch.setattr(room, "file_system_of", lambda _: FileSystem(device=1, free=2 * GB))
    check_room([_room("/a", 2)])
    with pytest.raises(BuildError) as caught:
        check_room([_room("/a", 1, "wheels"), _room("/b", 1.5, "the archive")])
    assert caught.value.cause == (
        "not enough disk space: 2.5 GB needed (1.0 GB in /a for wheels, 1.5 GB in /b for the "
        "archive), 2.0 GB free"
    )
    assert caught.value.remedy == "free space there, or use a larger disk: set /A; set /B"


def test_different_file_systems_are_judged_apart(monkeypatch):
    disks = {Path("/a"): FileSystem(1, 2 * GB), Path("/b"): FileSystem(2, 2 * GB)}
    monkeypatch.setattr(room, "file_system_of", disks.__getitem__)
    check_room([_room("/a", 1), _room("/b", 1.5)])


def test_a_folder_that_is_not_there_yet_is_on_its_parents_file_system(tmp_path):
    assert file_system_of(tmp_path / "no" / "such").device == tmp_path.stat().st_dev


def test_a_folder_that_cannot_be_made_is_refused_with_the_setting_that_chooses_another(tmp_path):
    (tmp_path / "file").touch()
    check_writable([_room(f"{tmp_path}/no/such", 1)])
    with pytest.raises(
        BuildError, match=r"file is not a folder: cannot put the \.sif there"
    ) as caught:
        check_writable([_room(f"{tmp_path}/file/below", 1, "the .sif")])
    assert caught.value.remedy == f"set {str(tmp_path).upper()}/FILE/BELOW"


def test_a_folder_that_is_read_only_is_refused_unless_the_engine_writes_there(
    tmp_path, monkeypatch
):
    """Root, who may run this, can write to every folder: what a system would say is played."""
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) != tmp_path)
    need = _room(f"{tmp_path}/none", 1, "the .sif")
    with pytest.raises(BuildError) as caught:
        check_writable([need])
    assert caught.value.cause == f"{tmp_path} cannot be written to: cannot put the .sif there"
    check_writable([replace(need, ours=False)])


def test_a_tmpdir_that_cannot_be_used_is_refused_and_not_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert check_temporary_folder() == tmp_path
    for wrong in (tmp_path / "none", Path("/etc/passwd")):
        monkeypatch.setenv("TMPDIR", str(wrong))
        with pytest.raises(BuildError, match=f"^TMPDIR={wrong} is not a folder that can be wri"):
            check_temporary_folder()
    monkeypatch.delenv("TMPDIR")
    assert check_temporary_folder().is_dir()


def test_too_little_memory_is_refused(monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=GB))
    check_memory(GB)
    with pytest.raises(BuildError, match=r"not enough memory: 2\.0 GB needed, 1\.0 GB available"):
        check_memory(2 * GB)
