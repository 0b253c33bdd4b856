"""Locked wheels from a folder, by the real pip without network."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from deploy.environment.lock import Lock, read_lock
from deploy.errors import EnvironmentSetupError
from deploy.packing import wheels
from deploy.packing.wheels import locked_wheels, wheels_folder


def make_wheel(folder: Path, name: str, version: str, tag: str = "py3-none-any") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def make_lock(folder: Path, given: Path, *, digest: str | None = None) -> Lock:
    """A lock of torch and one package, which lie in ``given``."""
    make_wheel(given, "torch", "2.13.0+cpu", "cp311-cp311-manylinux_2_28_x86_64")
    package = make_wheel(given, "typing_extensions", "4.16.0")
    digest = digest or hashlib.sha256(package.read_bytes()).hexdigest()
    (folder / "torch-cpu.txt").write_text("torch==2.13.0+cpu\n")
    (folder / "cpu.txt").write_text(f"typing_extensions==4.16.0 \\\n    --hash=sha256:{digest}\n")
    return read_lock(folder, "cpu")


def ignore(_text: str) -> None:
    pass


def test_wheels_come_from_a_given_folder_whichever_python_runs_the_kit(tmp_path: Path) -> None:
    lock = make_lock(tmp_path, tmp_path / "given")
    make_wheel(tmp_path / "given", "other", "1.0")
    found = locked_wheels(lock, tmp_path / "cache", tmp_path / "given", ignore)
    assert [path.name.split("-")[0] for path in found] == ["torch", "typing_extensions"]
    assert {path.parent for path in found} == {wheels_folder(tmp_path / "cache", lock)}


def test_wheels_in_the_cache_are_not_asked_for_again(tmp_path: Path) -> None:
    lock = make_lock(tmp_path, tmp_path / "given")
    first = locked_wheels(lock, tmp_path / "cache", tmp_path / "given", ignore)
    assert locked_wheels(lock, tmp_path / "cache", tmp_path / "nonexistent", ignore) == first


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ("hash", r"locked packages: typing_extensions==4\.16\.0 is not the locked file"),
        ("missing", "pip cannot get the locked packages: .*typing_extensions==4.16.0"),
        ("torch", "pip cannot get torch: .*torch==2.13.0"),
        ("other Python", "pip cannot get torch: .*torch==2.13.0"),
        ("folder", "pip cannot get torch"),
    ],
)
def test_what_cannot_be_had_is_named_in_one_line_and_leaves_nothing(
    tmp_path: Path, spoil: str, reason: str
) -> None:
    given = tmp_path / "given"
    lock = make_lock(tmp_path, given, digest="0" * 64 if spoil == "hash" else None)
    torch = next(given.glob("torch-*"))
    if spoil == "missing":
        next(given.glob("typing*")).unlink()
    elif spoil == "torch":
        torch.unlink()
    elif spoil == "other Python":
        torch.rename(given / torch.name.replace("cp311", "cp312"))
    elif spoil == "folder":
        given = tmp_path / "nonexistent"
    with pytest.raises(EnvironmentSetupError, match=reason) as caught:
        locked_wheels(lock, tmp_path / "cache", given, ignore)
    assert "\n" not in caught.value.cause
    assert caught.value.remedy == f"put the locked wheels into {given}"
    assert not list((tmp_path / "cache").rglob("*.whl"))
    assert not wheels_folder(tmp_path / "cache", lock).exists()


def test_what_a_killed_pip_leaves_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script stands for a pip that is killed while it downloads."""
    pip = tmp_path / "pip"
    pip.write_text(f'touch "$TMPDIR/pip-unpack"; echo "$TMPDIR" >{tmp_path}/told; kill -KILL $$\n')
    monkeypatch.setattr(wheels, "PIP", ("sh", str(pip)))
    lock = make_lock(tmp_path, tmp_path / "given")
    with pytest.raises(EnvironmentSetupError, match="pip cannot get torch: exit status -9"):
        locked_wheels(lock, tmp_path / "cache", tmp_path / "given", ignore)
    assert Path((tmp_path / "told").read_text().strip()).is_relative_to(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache" / "wheels").iterdir()] == [
        f"{wheels_folder(tmp_path, lock).name}.lock"
    ]
