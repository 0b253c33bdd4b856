"""A release of the kit itself: one command, from a clone, the same bytes again."""

import json
import shutil
import subprocess
import sys
import zipfile
from datetime import date
from pathlib import Path

import pytest

from deploy import __version__
from deploy.artefacts.cosign import verify_file
from deploy.host.files import sha256_of
from deploy.host.paths import CHECKOUT
from tests.programs import run_program

WHEEL = f"numlkit-{__version__}-py3-none-linux_x86_64.whl"


def git(clone: Path, *words: str) -> str:
    command = ["git", "-C", str(clone), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    return run_program([*command, *words], check=True).stdout.strip()


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Return a clone with a dated entry in its changelog, and this environment."""
    folder = tmp_path_factory.mktemp("release") / "numlkit"
    subprocess.run(["git", "clone", "--quiet", str(CHECKOUT), str(folder)], check=True)
    (folder / ".venv").symlink_to(CHECKOUT / ".venv")
    git(folder, "config", "user.name", "T")
    git(folder, "config", "user.email", "t@example.org")
    return folder


def digests(wheel: Path) -> dict[str, int]:
    """Return a checksum of each file, by its name."""
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.CRC for info in archive.infolist()}


def release(clone: Path, *words: str, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/release", *words]
    return run_program(command, cwd=clone, umask=umask)


def give_a_date(clone: Path, day: str) -> None:
    changelog = clone / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("(unreleased)", f"({day})", 1))
    git(clone, "commit", "--quiet", "--all", "--message", "Release")


def leave_behind(clone: Path) -> list[Path]:
    """Write what nobody has committed, and what a build that was interrupted leaves."""
    names = ("deploy/mine.py", "deploy/sites/mine.toml", "build/lib/deploy/mine.py", "build/cpp/my")
    for name in names:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text("")
    return [clone / name for name in names]


def test_a_version_without_a_dated_entry_is_not_released(clone):
    done = release(clone)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: CHANGELOG.md has no dated entry for {__version__}, ")
    assert not (clone / "dist").exists()
    assert git(clone, "tag") == ""


@pytest.mark.parametrize("day", ["2999-01-01", "2025-11-31"])
def test_an_entry_of_a_day_that_has_not_come_is_not_released(clone, day):
    give_a_date(clone, day)
    done = release(clone)
    git(clone, "reset", "--quiet", "--hard", "HEAD~")
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"error: CHANGELOG.md dates {__version__} {day}, which is no day up to today\n"
    )
    assert not (clone / "dist").exists()


def test_a_version_whose_tag_is_at_another_commit_is_refused_before_anything_is_made(clone):
    git(clone, "tag", f"v{__version__}")
    give_a_date(clone, date.today().isoformat())
    done = release(clone)
    git(clone, "reset", "--quiet", "--hard", f"v{__version__}")
    git(clone, "tag", "--delete", f"v{__version__}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: tag v{__version__} is at another commit\n")
    assert not (clone / "dist").exists()


def test_a_release_is_a_tag_a_wheel_its_parts_and_signed_checksums_and_can_be_made_again(
    clone, keys
):
    give_a_date(clone, date.today().isoformat())
    left = leave_behind(clone)
    (clone / "deploy" / "main.py").chmod(0o600)  # as after a clone with that umask
    done = release(clone, "--sign", str(keys.private), umask=0o077)
    assert done.returncode == 0, done.stderr
    out = clone / "dist" / "release"
    assert sorted(path.name for path in out.iterdir()) == [
        "SHA256SUMS", "SHA256SUMS.sig", WHEEL, f"{WHEEL}.cdx.json",
    ]  # fmt: skip
    assert git(clone, "rev-list", "-n1", f"v{__version__}") == git(clone, "rev-parse", "HEAD")
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=out, check=True)
    verify_file(out / "SHA256SUMS", out / "SHA256SUMS.sig", keys.public)
    parts = {
        part["name"] for part in json.loads((out / f"{WHEEL}.cdx.json").read_text())["components"]
    }
    assert {"tritonclient", "numl-serving", "nugraph3", "cmeel-qhull"} <= parts
    with zipfile.ZipFile(out / WHEEL) as wheel:
        names = [name.partition("purelib/")[2] for name in wheel.namelist()]
        terms = [name for name in wheel.namelist() if "/licenses/" in name]
    assert {Path(name).name for name in terms} == {"LICENSE", "NOTICE"}
    assert not [name for name in names if "mine" in name]
    assert all(path.exists() for path in left)
    for needed in (
        "deploy/share/model_repository/nugraph3/1/weights.safetensors",
        "deploy/share/containers/chart/Chart.yaml",
        "deploy/share/envs/numl/locks/serving.txt",
        "deploy/sites/eaf.toml",
        "numl_formats/published.py",
    ):
        assert needed in names
    first, parts_of_first = sha256_of(out / WHEEL), digests(out / WHEEL)
    again = release(clone)
    assert again.returncode == 1
    assert again.stderr == (
        f"error: {out} is there already\n  try: move it away, or name another --out\n"
    )
    shutil.rmtree(out)
    (clone / "deploy" / "main.py").chmod(0o644)
    assert release(clone).returncode == 0
    assert digests(out / WHEEL) == parts_of_first
    assert sha256_of(out / WHEEL) == first
