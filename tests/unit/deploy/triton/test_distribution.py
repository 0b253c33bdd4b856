"""A Triton without a container, unpacked into the cache: here without its wheel."""

from pathlib import Path

import pytest

from deploy.host.errors import EnvironmentSetupError
from deploy.triton import distribution as module
from deploy.triton.distribution import ensure_distribution
from deploy.triton.release import DEFAULT, find_release
from tests.environments import ignore
from tests.unit.deploy.environment.wheels import make_wheel


def test_downloads_for_two_pythons_have_folders_of_their_own(tmp_path, monkeypatch):
    """A second first start, with another Python, comes while the first one downloads."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    release = find_release(DEFAULT)
    folders: list[Path] = []

    def download(_release, folder, _say, _wheels):
        folders.append(folder)
        wheel = folder / "triton.whl"
        wheel.touch()
        if len(folders) == 1:
            ensure_distribution(release, "3.12", ignore)
        return wheel

    def unpack(wheel, folder, _python):
        assert wheel.is_file()
        (folder / "bin").mkdir()
        (folder / "bin" / "tritonserver").touch()

    monkeypatch.setattr(module, "_download", download)
    monkeypatch.setattr(module, "_unpack", unpack)
    found = ensure_distribution(release, "3.11", ignore)
    assert found.executable.is_file()
    assert len(folders) == 2
    assert found.root.parent == folders[0].parent
    assert not any(folder.exists() for folder in folders)


def test_its_wheel_comes_from_the_folder_of_wheels(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # One that is too old to run it can still build an image.
    monkeypatch.setattr(module.platform, "libc_ver", lambda: ("glibc", "2.34"))
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    release = find_release(DEFAULT)
    with pytest.raises(EnvironmentSetupError, match="cannot download nvidia-pytriton") as raised:
        ensure_distribution(release, "3.11", ignore, wheels=wheels)
    fill = f"pip download --no-deps --dest {wheels} nvidia-pytriton=="
    assert str(raised.value.remedy).startswith(fill)
    make_wheel(wheels, "nvidia_pytriton-0.7.0-py3-none-any.whl")
    with pytest.raises(EnvironmentSetupError, match=r"nvidia_pytriton-0\.7\.0-.*sha256"):
        ensure_distribution(release, "3.11", ignore, wheels=wheels)
