"""A Triton without a container, unpacked into the cache: here without its wheel."""

from pathlib import Path

from deploy.triton import distribution as module
from deploy.triton.distribution import ensure_distribution
from deploy.triton.release import DEFAULT, find_release
from tests.environments import ignore


def test_downloads_for_two_pythons_have_folders_of_their_own(tmp_path, monkeypatch):
    """A second first start, with another Python, comes while the first one downloads."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    release = find_release(DEFAULT)
    folders: list[Path] = []

    def download(_release, folder, _say):
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
