"""The tools' installation, for real: an Apptainer of its own beside the system's libc."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from deploy.host.paths import CHECKOUT
from tests.programs import run_program, write_program

SCRIPT = CHECKOUT / "scripts" / "install_container_tools"


def _install(*words: str | Path, umask: int = 0o022, **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = run_program([SCRIPT, *words], umask=umask, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _libc() -> str:
    libc = Path("/lib/x86_64-linux-gnu/libc.so.6")
    return hashlib.sha256(libc.read_bytes()).hexdigest()


def test_apptainer_goes_into_a_folder_of_its_own_and_works_for_everybody(tmp_path):
    before = _libc()
    prefix = tmp_path / "apptainer"
    _install("--only", "apptainer", "--prefix", f"{prefix}//", umask=0o077)
    assert _libc() == before
    closed = [
        path
        for path in (prefix, *prefix.rglob("*"))
        if not path.is_symlink() and path.stat().st_mode & 0o044 != 0o044
    ]
    assert closed == []
    definition, sif = tmp_path / "empty.def", tmp_path / "empty.sif"
    definition.write_text("Bootstrap: scratch\nFrom: -\n%labels\n    made by-this-one\n")
    apptainer = prefix / "bin" / "apptainer"
    run_program([apptainer, "build", sif, definition], check=True)
    shown = run_program([apptainer, "inspect", sif], check=True)
    assert "made: by-this-one" in shown.stdout


def test_a_folder_that_it_did_not_make_is_not_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").touch()
    (tmp_path / "thesis.partial").mkdir()
    command = [SCRIPT, "--only", "apptainer", "--prefix", tmp_path / "thesis"]
    done = run_program(command)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("==>"))
    assert "thesis has files that are not Apptainer's" in line
    assert (tmp_path / "thesis" / "chapter1.tex").exists()
    assert (tmp_path / "thesis.partial").exists()


@pytest.mark.parametrize("locale", ["C", "de_DE.UTF-8"])
def test_what_apt_says_is_understood_in_any_language(tmp_path, locale):
    policy = '[ "$LC_ALL" = C ] && echo "Candidate: 2.2" || echo "Installationskandidat: 2.2"'
    for name, text in {"apt-cache": policy, "dpkg-query": "exit 1"}.items():
        write_program(tmp_path / name, text)
    for name in ("bash", "uname"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    done = _install("--only", "cosign", "--dry-run", PATH=str(tmp_path), LC_ALL=locale)
    assert done.splitlines()[1].endswith(
        " apt-get install --yes --quiet=2 --no-install-recommends cosign"
    )


def test_what_is_there_is_left_as_it_is():
    said = _install("--dry-run")
    assert "Apptainer is there" in said
    assert "Docker is there" in said
    assert "apt-get install" not in said
