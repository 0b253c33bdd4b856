"""A release of the kit itself: one command, from a clone, the same bytes again."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deploy import __version__
from deploy.artefacts.cosign import verify_file
from deploy.host.files import sha256_of
from deploy.host.paths import CHECKOUT

WHEEL = f"numlkit-{__version__}-py3-none-linux_x86_64.whl"


def git(clone: Path, *words: str) -> str:
    command = ["git", "-C", str(clone), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    return subprocess.run(
        [*command, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


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


def release(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/release", *words]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)


def test_a_version_without_a_dated_entry_is_not_released(clone):
    done = release(clone)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: CHANGELOG.md has no dated entry for {__version__}, ")
    assert not (clone / "dist").exists()
    assert git(clone, "tag") == ""


def test_a_release_is_a_tag_a_wheel_its_parts_and_signed_checksums_and_can_be_made_again(
    clone, keys
):
    changelog = clone / "CHANGELOG.md"
    dated = changelog.read_text().replace("(unreleased)", "(2026-11-24)", 1)
    changelog.write_text(dated)
    git(clone, "commit", "--quiet", "--all", "--message", "Release")
    done = release(clone, "--sign", str(keys.private))
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
    for needed in (
        "deploy/share/model_repository/nugraph3/1/weights.safetensors",
        "deploy/share/containers/chart/Chart.yaml",
        "deploy/share/envs/numl/locks/serving.txt",
        "deploy/sites/eaf.toml",
        "numl_formats/published.py",
    ):
        assert needed in names
    first, parts_of_first = sha256_of(out / WHEEL), digests(out / WHEEL)
    assert release(clone).returncode == 1  # it is there already
    shutil.rmtree(out)
    assert release(clone).returncode == 0
    assert digests(out / WHEEL) == parts_of_first
    assert sha256_of(out / WHEEL) == first
