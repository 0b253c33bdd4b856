from pathlib import Path

from deploy.supervisor.leftovers import scratch_folders, shared_memory_regions

UUID = "0764797d-130d-4b3f-bf06-8b8b9c1baf32"


def test_only_regions_of_this_very_deployment_are_found(tmp_path: Path) -> None:
    own = tmp_path / f"numlkit-0-a-{UUID}"
    for path in (
        own,
        tmp_path / f"numlkit-0-a-b-{UUID}",  # a deployment named a-b
        tmp_path / f"numlkit-1-a-{UUID}",  # another user's
        tmp_path / "numlkit-0-a-notes.txt",
        tmp_path / f"triton_python_backend_shm_region_{UUID}",
    ):
        path.touch()
    assert shared_memory_regions("numlkit-0-a-", tmp_path) == (own,)


def test_scratch_folders_are_folders_not_links(tmp_path: Path) -> None:
    folder = tmp_path / "python_env_abc"
    folder.mkdir()
    (tmp_path / "python_env_link").symlink_to(folder)
    (tmp_path / "python_env_file").touch()
    assert scratch_folders(tmp_path) == {folder}
