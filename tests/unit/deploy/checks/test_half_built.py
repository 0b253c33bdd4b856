import os
from pathlib import Path

import pytest

from deploy.checks import deployments as module
from deploy.checks.deployments import half_built, half_built_findings, remove_half_built
from deploy.commands import exec as command
from deploy.deployment.state import starting_deployments
from deploy.host.errors import KitError, LaunchError
from deploy.host.files import built_folder, locked
from deploy.host.paths import deployments_folder
from numl_job.command import FAILED


@pytest.fixture
def cache(home, monkeypatch):
    monkeypatch.setattr(module, "DIST", home / "checkout" / "dist")
    return home / "cache" / "numlkit"


def _make(folder: Path, *names: str) -> tuple[Path, ...]:
    for name in names:
        (folder / name / "lib").mkdir(parents=True)
        (folder / name / "lib" / "file").touch()
    return tuple(sorted(folder / name for name in names))


def test_what_interrupted_commands_leave_is_found_and_what_is_finished_is_not(cache):
    left = _make(
        cache,
        "triton/.numlkit.2.51.0-py3.11.x7k2_abc.partial",
        "environments/.numlkit.serving-0123456789abcdef.x7k2_abc.partial",
        ".numlkit.state.json.x7k2_abc.partial",
    )
    finished = _make(
        cache, "triton/2.51.0-py3.11", "environments/serving-fedcba9876543210", "tmpfiles"
    )
    assert half_built(cache) == left
    (found,) = half_built_findings()
    assert found.level == "warning"
    assert found.fix() == f"removed {', '.join(map(str, left))}"
    assert not any(path.exists() for path in left)
    assert all((path / "lib" / "file").exists() for path in finished)
    assert not list(half_built_findings())


def test_folders_of_people_are_never_taken_for_half_built(cache, tmp_path, monkeypatch):
    dist = tmp_path / "checkout" / "dist"
    _make(
        dist,
        "tmp_results",
        "tmpab12cd34",
        "plots/tmp_figures",
        ".thesis.abcd1234.partial",
        ".numlkit.thesis.partial",
        "numlkit.thesis.abcd1234.partial",
    )
    (mine,) = _make(tmp_path, "home")
    (dist / ".numlkit.link.abcd1234.partial").symlink_to(mine)
    assert half_built(dist) == ()
    assert not list(half_built_findings())
    (theirs,) = _make(dist, ".numlkit.numl.sif.abcd1234.partial")
    assert half_built(dist) == (theirs,)
    monkeypatch.setattr(os, "getuid", lambda: 65534)  # of another user of a shared folder
    assert half_built(dist) == ()


def test_what_somebody_is_building_is_no_finding_and_is_not_removed(cache):
    with locked(cache / "triton" / "2.51.lock"), built_folder(cache / "triton" / "2.51") as partial:
        assert half_built(cache) == (partial,)
        assert not list(half_built_findings())
        with pytest.raises(KitError, match="another command is at work in"):
            remove_half_built(cache, (partial,))
        assert partial.exists()


def test_doctor_leaves_alone_what_an_exec_is_copying(cache, monkeypatch):
    found = []

    def launch(_engine, folder, *_arguments, parent):
        with built_folder(folder.repository) as partial:
            (partial / "weights").touch()
            found.extend(half_built_findings())
            with pytest.raises(KitError, match="another command is at work in"):
                remove_half_built(folder.path, (partial,))
            assert (starting_deployments(), parent) == ((folder.name,), os.getpid())
        raise LaunchError("the server ended")

    monkeypatch.setattr(command, "chosen", lambda *_: (None, None))
    monkeypatch.setattr(command, "check_given", lambda _resolved: [])
    monkeypatch.setattr(command, "launch", launch)
    assert command.main(["--engine", "local", "--", "true"]) == FAILED
    assert found == []
    assert not list(deployments_folder().iterdir()), "nothing is left of a start that failed"


def test_what_has_been_finished_meanwhile_is_not_removed(cache):
    (environment,) = _make(cache, "environments/serving-0123456789abcdef")
    with pytest.raises(KitError, match="was finished meanwhile"):
        remove_half_built(cache, (environment,))
    assert (environment / "lib" / "file").exists()


def test_output_folder_and_deployments_are_looked_at_too(cache, tmp_path):
    sif = _make(tmp_path / "checkout" / "dist", ".numlkit.numl-24.10-cpu.sif.ab12cd34.partial")
    staged = _make(
        tmp_path / "state/numlkit/deployments/numl", ".numlkit.model_repository.cd34ef56.partial"
    )
    details = [found.detail for found in half_built_findings()]
    assert details == [f"half-built and left behind: {path}" for path in (*sif, *staged)]
