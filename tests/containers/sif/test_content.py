"""What is in the .sif: its files, however it was built, and what it says of itself."""

import hashlib
import json
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from deploy.host.files import sha256_of
from tests.containers.sif.conftest import partition
from tests.programs import run_program

# What Apptainer itself empties.
EMPTIED = {"etc/resolv.conf"}
# What the engine puts into every container that it exports.
ENGINES_OWN = {"etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf"}


@dataclass(frozen=True)
class Entry:
    """A file, folder, link or device of a tree."""

    mode: str
    owner: tuple[int, int]
    content: str


def tree(root: Path) -> dict[str, Entry]:
    found = {}
    for parent, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(parent, name)
            facts = path.lstat()
            content = ""
            if path.is_symlink():
                content = str(path.readlink())
            elif stat.S_ISREG(facts.st_mode):
                with path.open("rb") as stream:
                    content = hashlib.file_digest(stream, "sha256").hexdigest()
            mode = stat.filemode(facts.st_mode)
            owner = (facts.st_uid, facts.st_gid)
            found[str(path.relative_to(root))] = Entry(mode, owner, content)
    return found


def tree_of(sif: Path) -> dict[str, Entry]:
    """The file system of a .sif that the kit has built."""
    with tempfile.TemporaryDirectory(dir=sif.parent) as scratch:
        target = Path(scratch) / "root"
        command = ["unsquashfs", "-quiet", "-no-progress", "-offset", str(partition(sif)[0])]
        run_program([*command, "-dest", target, sif], check=True)
        return tree(target)


def differing(one: dict[str, Entry], other: dict[str, Entry]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


@pytest.fixture(scope="session")
def own_tree(sif):
    return tree_of(sif)


@pytest.mark.skipif(os.geteuid() != 0, reason="owners can be compared by root only")
def test_its_files_are_those_that_apptainer_itself_puts_in(own_tree, image, folder):
    sandbox = folder / "apptainers-own"
    command = ["apptainer", "build", "--sandbox", sandbox, f"docker-daemon:{image.tag}"]
    run_program(command, check=True)
    try:
        assert {entry.owner for entry in own_tree.values()} == {(0, 0)}
        # Apptainer mounts /dev; an ordinary user's build has none either.
        assert not any(name.startswith("dev/") for name in own_tree)
        apptainers = {
            name: replace(entry, owner=(0, 0))
            for name, entry in tree(sandbox).items()
            if not name.startswith("dev/")
        }
        assert differing(own_tree, apptainers) - EMPTIED - ENGINES_OWN == {
            # What this build says of itself, in other words.
            ".singularity.d/Singularity",
            ".singularity.d/labels.json",
            ".singularity.d/env/10-docker2singularity.sh",
            ".singularity.d/env/90-environment.sh",
            ".singularity.d/runscript",
            ".singularity.d/startscript",
            # What an image has no word for.
            ".singularity.d/runscript.help",
            ".singularity.d/test",
        }
    finally:
        shutil.rmtree(sandbox)


def test_without_docker_the_kits_own_files_and_scripts_are_the_same(own_tree, sif_without_docker):
    others = tree_of(sif_without_docker)
    own = {name for name in differing(own_tree, others) if name.startswith(("opt/", ".sing"))}
    assert own == {
        # The report of the image's own check has no part in it, nor has the image's environment.
        "opt/numl/checked.json",
        ".singularity.d/env/10-docker2singularity.sh",
        # What they were built from.
        ".singularity.d/Singularity",
        ".singularity.d/labels.json",
    }


def test_the_same_image_gives_the_same_bytes(sif, build, folder):
    again = build(folder / "again.sif")
    assert sha256_of(again) == sha256_of(sif)
    again.unlink()


def test_it_is_at_most_as_large_as_wanted(sif):
    assert sif.stat().st_size <= 110_000_000


def test_inspect_shows_labels_scripts_and_environment(host, sif):
    shown = json.loads(host.output("apptainer", "inspect", "--all", sif))["data"]["attributes"]
    assert shown["labels"]["org.opencontainers.image.title"] == "numlkit"
    assert shown["labels"]["org.numlkit.triton.release"] == "24.10"
    assert shown["labels"]["org.label-schema.build-date"] == "2023-11-14T22:13:20+00:00"
    assert 'exec /opt/numl/bin/serve "$@"' in shown["runscript"]
    assert 'exec /opt/numl/bin/serve "$@"' in shown["startscript"]
    assert "exec /opt/numl/bin/check" in shown["test"]
    assert "apptainer instance run" in shown["helpfile"]
    assert shown["deffile"].startswith("Bootstrap: docker-daemon\nFrom: numlkit-test/slim:")
    assert "NUML_LISTEN" in shown["environment"]["/.singularity.d/env/90-environment.sh"]


def test_the_header_is_as_apptainer_writes_it(sif):
    header = run_program(["apptainer", "sif", "header", sif], check=True).stdout
    assert "run-singularity" in header
    assert "2023-11-14 22:13:20" in header
    assert stat.S_IMODE(sif.stat().st_mode) == 0o755
    parts = run_program(["apptainer", "sif", "list", sif], check=True).stdout
    assert [line.split("|")[-1] for line in parts.splitlines() if line[:1].isdigit()] == [
        "Def.FILE",
        "JSON.Generic",
        "JSON.Generic",
        "FS (Squashfs/*System/amd64)",
    ]
    assert partition(sif)[1] == sif.stat().st_size
