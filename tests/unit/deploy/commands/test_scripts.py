"""What holds for all scripts of the shell."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.host.paths import CHECKOUT
from tests.programs import run_program, write_program

_GOES = 'cd "$(dirname "${BASH_SOURCE[0]}")/'
SCRIPTS = sorted(
    path.relative_to(CHECKOUT)
    for pattern in ("scripts/*", "clients/cpp/check", "tests/hosts/*")
    for path in CHECKOUT.glob(pattern)
    if path.is_file() and os.access(path, os.X_OK) and _GOES in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_script_goes_to_its_checkout_wherever_cdpath_leads(script, tmp_path):
    here, elsewhere = tmp_path / "clone", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        (folder / script).parent.mkdir(parents=True)
    lines = (CHECKOUT / script).read_text(encoding="utf-8").splitlines()
    [goes] = (line for line in lines if _GOES in line)
    (here / script).write_text(f"{goes}\npwd\n", encoding="utf-8")
    variables = {**os.environ, "CDPATH": str(elsewhere)}
    done = run_program(["bash", script], cwd=here, env=variables, check=True)
    assert done.stdout == f"{here}\n"


@pytest.mark.parametrize(
    ("words", "folder"), [(["site"], "site"), (["a b"], "a b"), ([], "../numlkit/dist/docs")]
)
def test_the_documentation_goes_where_the_caller_says(words, folder, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    done = docs(tmp_path / "numlkit", *words, cwd=here)
    assert done.stdout == f"{(here / folder).resolve()}\n"


@pytest.mark.parametrize(("word", "status"), [("--help", 0), ("-x", 1)])
def test_the_documentations_script_says_how_it_is_called(word, status, tmp_path):
    done = docs(tmp_path / "numlkit", word, cwd=tmp_path)
    assert done.returncode == status
    assert "scripts/docs [FOLDER]" in done.stdout


def docs(checkout: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the script in a checkout whose MkDocs says only where the site would be."""
    write_program(checkout / "scripts/kit-environment", "exit")
    write_program(checkout / ".venv/bin/python", '#!/bin/bash\necho "${@: -1}"')
    for name in ("envs/kit-docs.txt", ".venv/docs/.complete"):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).touch()
    shutil.copy(CHECKOUT / "scripts" / "docs", checkout / "scripts")
    return run_program([checkout / "scripts" / "docs", *words], cwd=cwd)


@pytest.fixture
def refreeze(tmp_path):
    """Renews a lock of a checkout that has none, with what is in its ``bin``."""
    for name in ("scripts", "envs"):
        (tmp_path / name).mkdir()
    script = shutil.copy(CHECKOUT / "scripts" / "refreeze", tmp_path / "scripts")
    (tmp_path / "deploy").symlink_to(CHECKOUT / "deploy")
    variables = {**os.environ, "PATH": f"{tmp_path / 'bin'}:/bin"}
    return lambda name: run_program([sys.executable, script, name], env=variables)


def test_locks_that_are_none_are_told_before_any_is_renewed(refreeze):
    done = refreeze("srving")
    assert done.returncode == 2
    assert "there are no locks 'srving', only: serving, sync, full, kit" in done.stderr


@pytest.mark.parametrize("there", [True, False])
def test_a_lock_that_cannot_be_renewed_stays_as_it_is(there, refreeze, tmp_path):
    lock = tmp_path / "envs" / "kit.txt"
    lock.write_text("pip==1 \\\n    --hash=sha256:0\n")
    before = lock.read_text()
    if there:
        write_program(tmp_path / "bin" / "uv", "echo uv: no network >&2; exit 2")
    done = refreeze("kit")
    assert done.returncode == 1
    assert lock.read_text() == before
    assert there or done.stderr == "no uv on this host: pipx install uv\n"
