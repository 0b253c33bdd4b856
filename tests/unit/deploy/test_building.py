"""Around the artefacts: room for them, the manifest, which source they are made from."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.building.manifest import Artefact, read_manifest, record
from deploy.building.preflight import (
    FileSystem,
    Room,
    check_memory,
    check_room,
    check_temporary_folder,
    check_writable,
    file_system_of,
)
from deploy.building.run import check_libc
from deploy.building.source import find_source, published
from deploy.building.steps import Steps
from deploy.building.wire import wired_settings
from deploy.cli import describe_os_error
from deploy.console import Console
from deploy.errors import BuildError
from deploy.packing.prefix import Prefix
from deploy.repository.config import GpuInstances, LaunchSettings
from deploy.server.release import find_release

GB = 10**9


def _room(folder: str, gigabytes: float, purpose: str = "layers") -> Room:
    return Room(Path(folder), int(gigabytes * GB), purpose, f"set {folder.upper()}")


def test_room_that_is_there_is_enough() -> None:
    check_room([_room("/a", 1)], lambda _: FileSystem(device=1, free=GB))


def test_what_goes_to_one_file_system_is_added_up() -> None:
    with pytest.raises(BuildError) as caught:
        check_room(
            [_room("/a", 1, "wheels"), _room("/b", 1.5, "the archive")],
            lambda _: FileSystem(device=1, free=2 * GB),
        )
    assert caught.value.cause == (
        "disk too small: 2.5 GB needed (1.0 GB in /a for wheels, 1.5 GB in /b for the archive), "
        "2.0 GB free"
    )
    assert caught.value.remedy == "free space there, or use a larger disk: set /A; set /B"


def test_different_file_systems_are_judged_apart() -> None:
    check_room(
        [_room("/a", 1), _room("/b", 1.5)],
        lambda folder: FileSystem(device=hash(folder), free=2 * GB),
    )


def test_a_folder_that_is_not_there_yet_is_on_its_parents_file_system(tmp_path: Path) -> None:
    assert file_system_of(tmp_path / "no" / "such").device == tmp_path.stat().st_dev


def test_a_folder_that_cannot_be_made_is_refused_with_the_setting_that_chooses_another(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    check_writable([_room(f"{tmp_path}/no/such", 1)])
    with pytest.raises(BuildError, match=r"file is not a folder: no place for the \.sif") as caught:
        check_writable([_room(f"{tmp_path}/file/below", 1, "the .sif")])
    assert caught.value.remedy == f"set {str(tmp_path).upper()}/FILE/BELOW"


def test_a_folder_that_is_read_only_is_refused_unless_the_engine_writes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root, who may run this, can write to every folder: what a system would say is played."""
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) != tmp_path)
    need = _room(f"{tmp_path}/none", 1, "the .sif")
    with pytest.raises(BuildError) as caught:
        check_writable([need])
    assert caught.value.cause == f"{tmp_path} cannot be written to: no place for the .sif"
    check_writable([replace(need, ours=False)])


def test_a_tmpdir_that_cannot_be_used_is_refused_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert check_temporary_folder() == tmp_path
    for wrong in (tmp_path / "none", Path("/etc/passwd")):
        monkeypatch.setenv("TMPDIR", str(wrong))
        with pytest.raises(BuildError, match=f"^TMPDIR={wrong} is not a folder that can be wri"):
            check_temporary_folder()
    monkeypatch.delenv("TMPDIR")
    assert check_temporary_folder().is_dir()


def test_too_little_memory_is_refused() -> None:
    check_memory(GB, available=GB)
    with pytest.raises(BuildError, match=r"memory too small: 2\.0 GB needed, 1\.0 GB available"):
        check_memory(2 * GB, available=GB)


def _artefact(name: str, kind: str = "env", sha256: str = "0") -> Artefact:
    return Artefact.model_validate(
        {"kind": kind, "name": name, "bytes": 1, "sha256": sha256, "created": 0}
        | {"inputs": {}, "steps": {"pack": 1.5}}
    )


def test_a_build_replaces_its_own_entries_and_keeps_those_whose_files_are_there(
    tmp_path: Path,
) -> None:
    for name in ("a.tar.gz", "b.tar.gz"):
        (tmp_path / name).touch()
    old = [_artefact("a.tar.gz"), _artefact("b.tar.gz"), _artefact("gone"), _artefact("i", "image")]
    record(tmp_path, old)
    record(tmp_path, [_artefact("a.tar.gz", sha256="1")])
    found = {(a.kind, a.name): a.sha256 for a in read_manifest(tmp_path).artefacts}
    assert found == {("env", "a.tar.gz"): "1", ("env", "b.tar.gz"): "0", ("image", "i"): "0"}


def test_a_manifest_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 7}))
    with pytest.raises(BuildError, match=r"manifest\.json: not a manifest of this kit"):
        read_manifest(tmp_path)


def test_a_failed_step_is_not_counted(tmp_path: Path) -> None:
    steps = Steps(Console("quiet"))
    with steps.step("first", tmp_path):
        pass
    with pytest.raises(BuildError), steps.step("second", tmp_path):
        raise BuildError("no")
    assert list(steps.seconds) == ["first"]


def test_a_full_disk_is_named_by_the_folder_where_the_system_names_no_file(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="No space left") as caught,
        Steps(Console("quiet")).step("pack", tmp_path),
        Path("/dev/full").open("wb", buffering=0) as full,
    ):
        full.write(b"x")
    error = describe_os_error(caught.value)
    assert error.cause == f"disk full: {tmp_path}: No space left on device"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for words in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    return tmp_path


def test_a_build_is_given_the_commits_time(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    show = ["git", "-C", str(checkout), "log", "-1", "--format=%H %ct"]
    commit, time = subprocess.run(show, capture_output=True, text=True, check=True).stdout.split()
    source = find_source(checkout)
    assert (source.revision, source.epoch) == (commit, int(time))


def test_the_time_can_be_given(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert find_source(checkout).epoch == 1_700_000_000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    with pytest.raises(BuildError, match="SOURCE_DATE_EPOCH='soon' is not a number"):
        find_source(checkout)


def test_a_folder_without_history_has_no_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    assert find_source(tmp_path).revision == "unknown"


@pytest.mark.parametrize(
    ("remote", "url"),
    [
        ("https://user:secret@example.org/numl/kit.git", "https://example.org/numl/kit"),
        ("git@example.org:numl/kit.git", "https://example.org/numl/kit"),
        ("ssh://git@example.org/numl/kit", "https://example.org/numl/kit"),
        ("/srv/git/kit", ""),
        ("", ""),
    ],
)
def test_a_remote_is_named_without_secrets_and_a_folder_not_at_all(remote: str, url: str) -> None:
    assert published(remote) == url


def test_an_environment_that_nvidias_image_is_too_old_for_is_refused(tmp_path: Path) -> None:
    release = find_release("24.10")
    check_libc(Prefix(tmp_path, "0" * 64, "3.11.7", (2, 35)), release)
    with pytest.raises(BuildError, match=r"needs glibc 2\.36; NVIDIA's image .* has 2\.35"):
        check_libc(Prefix(tmp_path, "0" * 64, "3.11.2", (2, 36)), release)


@pytest.mark.parametrize(("gpu", "gpus"), [(False, None), (True, GpuInstances(2))])
def test_a_wired_repository_uses_every_gpu_its_server_sees_or_none(
    gpu: bool, gpus: GpuInstances | None
) -> None:
    settings = wired_settings(
        Path("/out/numl.tar.gz"), environment_digest="e2bc", instances=2, gpu=gpu
    )
    assert settings == LaunchSettings(
        environment=Path("$$TRITON_MODEL_DIRECTORY/../numl.tar.gz"),
        parameters={"environment_digest": "e2bc"},
        instances=2,
        gpus=gpus,
    )
