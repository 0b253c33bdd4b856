"""A real Apptainer, one who types at it, and the .sif built in each way.

Where root runs the tests, everything is run by root or an ordinary user, and most of it by both.
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.artefacts.image import debian_name
from deploy.artefacts.sif import SifBuilder
from deploy.artefacts.tools import SifTools
from tests.containers.conftest import EPOCH, Ingredients, made_once
from tests.environments import ignore
from tests.programs import run_program
from tests.views import ordinary

USERS = ("root", "ordinary") if os.geteuid() == 0 else ("ordinary",)


@dataclass(frozen=True)
class Host:
    """Someone at the keyboard of a machine with nothing but Apptainer and a .sif."""

    account: pwd.struct_passwd | None
    options: tuple[str, ...] = ()

    def words(self, *command: str | Path) -> list[str]:
        """The command line as this one types it; ``apptainer ACTION`` gets what it needs here."""
        words = [str(word) for word in command]
        if words[0] == "apptainer" and words[1] in ("run", "exec", "test"):
            words[2:2] = self.options
        if self.account is None:
            return words
        name, home = self.account.pw_name, self.account.pw_dir
        identity = ["--reuid", name, "--regid", str(self.account.pw_gid), "--init-groups"]
        return ["setpriv", *identity, "env", f"HOME={home}", f"USER={name}", *words]

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return run_program(self.words(*command), cwd="/")

    def output(self, *command: str | Path) -> str:
        done = self.run(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def ordinary_user():
    if os.geteuid() != 0:
        return Host(None)
    # A machine may keep FUSE to itself; what Apptainer then has to do is slower.
    fuse = Path("/dev/fuse")
    is_open = fuse.exists() and fuse.stat().st_mode & stat.S_IROTH
    return Host(ordinary(), () if is_open else ("--unsquash",))


@pytest.fixture(params=USERS)
def host(request, ordinary_user):
    return Host(None) if request.param == "root" else ordinary_user


@pytest.fixture(scope="session")
def folder():
    """A folder that every user may read; its content is large and goes when the tests end."""
    with tempfile.TemporaryDirectory(prefix="numlkit-test-sif-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def sif_without_docker(context, ingredients, tools):
    def build(out: Path) -> None:
        build_without_docker(context, ingredients, tools, out)

    return made_once("without-docker.sif", build)


def build_without_docker(
    context: Path, ingredients: Ingredients, tools: SifTools, out: Path
) -> Path:
    """Build ``out`` by Apptainer alone, with the settings of these tests."""
    SifBuilder(tools, EPOCH, ignore).without_docker(
        context, out, base=debian_name((2, 35)), digest=None, labels=ingredients.labels
    )
    return out


def partition(sif: Path) -> tuple[int, int]:
    """Where the file system of a .sif begins and ends."""
    listed = run_program(["apptainer", "sif", "list", sif], check=True).stdout
    [line] = [line for line in listed.splitlines() if line.endswith("|FS (Squashfs/*System/amd64)")]
    begin, end = line.split("|")[-2].split("-")
    return int(begin), int(end)
