"""A .sif and a sandbox in a folder that other hosts see, as a CVMFS is published."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from deploy.artefacts.manifest import record
from deploy.host.files import sha256_of
from deploy.host.paths import CHECKOUT
from tests.artefacts import artefact
from tests.kit import NUMLKIT
from tests.programs import run_program


@pytest.fixture
def shared():
    """A folder that every user may read, as pytest's own, which other sessions close, is not."""
    with tempfile.TemporaryDirectory(prefix="numlkit-test-shared-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def run(command: str, *words: str | Path) -> dict[str, Any]:
    done = run_program([NUMLKIT, command, *map(str, words), "--json"], cwd=CHECKOUT)
    return {**json.loads(done.stdout), "status": done.returncode}


def test_a_sif_and_then_a_sandbox_are_published_and_anybody_can_run_what_serves(
    sif, ordinary_user, shared
):
    size, digest = sif.stat().st_size, sha256_of(sif)
    record(sif.parent, artefact("sif", sif.name, digest, size))
    place = shared / "cvmfs"
    place.mkdir()
    first = run("publish", place, "--image", sif)
    assert (first["status"], first["release"], first["sha256"]) == (0, "1", digest), first
    assert (place / "current").readlink() == Path("1")
    assert sorted(path.name for path in place.iterdir()) == ["1", "current", "published.json"]
    assert sha256_of(place / "current" / "numl.sif") == digest
    again = run("publish", place, "--image", sif)
    assert (again["status"], again["changed"]) == (0, False)

    second = run("publish", place, "--image", sif, "--sandbox")
    assert (second["status"], second["release"]) == (0, "2"), second
    moved = shared / "mounted elsewhere"
    place.rename(moved)
    for image in (moved / "current" / "numl", moved / "1" / "numl.sif"):
        reports = ordinary_user.output("apptainer", "exec", image, "/opt/numl/bin/check")
        assert reports.count('"ok": true') == 3

    back = run("rollback", moved)
    assert (back["status"], back["serving"], back["before"]) == (0, 1, 2)
    listed = run("published", moved)["releases"]
    assert [(each["release"], each["serving"]) for each in listed] == [("1", True), ("2", False)]
    pruned = run("publish", moved, "--image", sif, "--prune")
    assert (pruned["changed"], pruned["kept"]) == (True, [1])
    assert not (moved / "2" / "numl").exists()
