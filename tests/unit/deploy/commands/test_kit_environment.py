"""``scripts/kit-environment``: on a host whose Python will not do, and in a checkout that moves."""

import os
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pytest

from deploy.host.files import sha256_of
from deploy.host.paths import CHECKOUT
from tests.programs import run_program, write_program
from tests.unit.deploy.environment.wheels import make_wheel

ELSEWHERE = "set PYTHON to a Python from elsewhere (conda, uv)"
OLD = '[ "$1" = --version ] && echo Python 3.9.2 || exit 1'


ROOT = "" if os.geteuid() == 0 else "as root: "
UPDATE = "" if list(Path("/var/lib/apt/lists").glob("*_Packages*")) else "apt-get update && "
TOO_OLD = "python3 is Python 3.9.2; the kit needs 3.10 to 3.14"


@pytest.mark.parametrize(
    ("programs", "python", "cause", "remedy"),
    [
        (["python3", "dnf"], {}, TOO_OLD, f"{ROOT}dnf install python3.12; or {ELSEWHERE}"),
        (["python3", "zypper"], {}, TOO_OLD, f"{ROOT}zypper install python312; or {ELSEWHERE}"),
        # Debian 11 and Ubuntu 20.04 have one Python only.
        (["python3", "apt-get"], {}, TOO_OLD, ELSEWHERE),
        (["python3", "pacman"], {}, TOO_OLD, ELSEWHERE),
        (
            ["apt-get"],
            {},
            "there is no Python; the kit needs 3.10 to 3.14",
            f"{ROOT}{UPDATE}apt-get install python3 python3-venv; or {ELSEWHERE}",
        ),
        (
            ["python3"],
            {"PYTHON": "python3"},
            "PYTHON=python3 is not a release of Python from 3.10 to 3.14",
            "set PYTHON to another, or unset it",
        ),
    ],
    ids=["Red Hat", "SUSE", "Debian", "Arch", "no Python", "one that is given"],
)
def test_a_python_that_will_not_do_is_named_and_a_newer_one_where_there_is_one(
    tmp_path, programs, python, cause, remedy
):
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    for name in programs:
        write_program(tmp_path / name, OLD if name == "python3" else "")
    variables = {"PATH": str(tmp_path), "CXX": "c++", **python}
    done = run_program([CHECKOUT / "scripts" / "kit-environment"], env=variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {cause}\n  try: {remedy}\n"


PIP = f"pip-{version('pip')}.dist-info"
# Stands for a Python whose pip installs another one, unless a setting forbids it or contradicts.
PLAYED = f"""\
case "$*" in
  *"pip install"*--target*)
    [ "$PIP_USER$PIP_REQUIRE_VIRTUALENV$PIP_PREFIX" = 00 ] || exit 1
    while [ "$1" != --target ]; do shift; done
    cd {sysconfig.get_path("purelib")} && cp -R pip {PIP} "$2" ;;
  *"-m pip"*) ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small checkout whose environment two have made at once, and what they said.

    Its command says which code it runs.
    """
    folder = tmp_path_factory.mktemp("checkouts") / "numlkit"
    for name in ("scripts", "envs", "deploy"):
        (folder / name).mkdir(parents=True)
    shutil.copy(CHECKOUT / "scripts" / "kit-environment", folder / "scripts")
    digest = sha256_of(make_wheel(folder.parent, "thing-1-py3-none-any.whl"))
    pins = {f"pip=={version('pip')}": "0", "thing==1": digest}
    lines = (f"{pin} \\\n    --hash=sha256:{digest}\n" for pin, digest in pins.items())
    (folder / "envs" / "kit.txt").write_text("".join(lines))
    (folder / "pyproject.toml").touch()
    code = "import thing\n\n\ndef main():\n    print(__file__)\n"
    (folder / "deploy" / "main.py").write_text(code)
    write_program(folder.parent / "python", PLAYED)
    with ThreadPoolExecutor() as pool:
        return folder, sorted(pool.map(set_up, (folder, folder)))


@pytest.fixture
def checkout(made):
    return made[0]


def set_up(folder: Path) -> str:
    """Make its environment where a site's settings are for what its users install themselves."""
    wheels = folder.parent
    variables = {"PATH": "/usr/bin:/bin", "CXX": "c++", "PYTHON": str(wheels / "python")}
    variables |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    variables |= {"PIP_USER": "1", "PIP_REQUIRE_VIRTUALENV": "1", "PIP_NO_BINARY": "thing"}
    variables |= {f"PIP_{name}": str(wheels / "users") for name in ("TARGET", "PREFIX")}
    (wheels / "constraints").write_text("thing==2\n")
    variables["PIP_CONSTRAINT"] = str(wheels / "constraints")
    words = ["scripts/kit-environment"]
    done = run_program(words, cwd=folder, env=variables, umask=0, check=True)
    return done.stderr


def code_of(folder: Path) -> Path:
    done = run_program([folder / ".venv" / "bin" / "numlkit"], check=True)
    return Path(done.stdout.strip()).parents[1]


def test_nothing_of_the_environment_is_for_all_to_write_whatever_the_umask(checkout):
    made = [checkout / ".venv", *(checkout / ".venv").rglob("*")]
    assert not [path for path in made if not path.is_symlink() and path.stat().st_mode & 0o002]


def without_environment(checkout: Path, name: str) -> Path:
    ignored = shutil.ignore_patterns(".venv")
    return Path(shutil.copytree(checkout, checkout.with_name(name), ignore=ignored))


def test_of_two_at_once_one_makes_the_environment_and_the_other_waits_for_it(made):
    folder, (one, other) = made
    assert one == ""
    assert other.startswith("making the kit's Python environment in .venv")
    assert code_of(folder) == folder


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        ("/usr/bin/python3: No module named venv", "apt-get install python3-venv; or "),
        ("Error: [Errno 30] Read-only file system: '.venv'", "check the owner of {folder} and "),
        ("Error: [Errno 28] No space left on device", "free space there (df -h)\n"),
    ],
)
def test_an_environment_that_cannot_be_made_is_told_with_what_helps(
    checkout, tmp_path, why, remedy
):
    folder = without_environment(checkout, tmp_path.name)
    script = f'case "$*" in "-m venv"*) echo "{why}" >&2; exit 1 ;; esac'
    python = write_program(tmp_path / "python", script)
    write_program(tmp_path / "apt-get", "")
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CXX": "c++", "PYTHON": str(python)}
    done = run_program([folder / "scripts" / "kit-environment"], env=variables)
    assert done.returncode == 2
    assert f"error: {python} cannot make a virtual environment: {why}\n  try: " in done.stderr
    assert remedy.format(folder=folder) in done.stderr


def test_the_environment_of_a_checkout_that_was_copied_or_moved_is_made_again(checkout):
    copied, moved = checkout.with_name("copied"), checkout.with_name("moved")
    for how, here, there in ((shutil.copytree, checkout, copied), (Path.rename, copied, moved)):
        # As pip makes them, with the path of their Python.
        (here / ".venv" / "bin" / "pytest").write_text(f"#!{here}/.venv/bin/python\n")
        how(here, there)
        assert set_up(there).startswith("making the kit's Python environment in .venv")
        assert code_of(there) == there
        assert not (there / ".venv" / "bin" / "pytest").exists()
        (there / ".venv" / "bin" / "mine").touch()
        assert set_up(there) == ""  # it is complete, and left as it is
        assert (there / ".venv" / "bin" / "mine").exists()


def test_the_environment_is_made_again_once_its_python_has_become_another_version(checkout):
    """As when a distribution or conda is upgraded: ``python3`` there has other folders."""
    libraries = checkout / ".venv" / "lib"
    (library,) = libraries.glob("python3.*")
    library.rename(libraries / "python3.9")
    assert set_up(checkout).startswith("making the kit's Python environment in .venv")
    assert code_of(checkout) == checkout


def test_the_environment_of_another_checkout_to_which_there_is_a_link_is_left_to_it(checkout):
    there = without_environment(checkout, "there")
    (there / ".venv").symlink_to(checkout / ".venv")
    assert set_up(there) == ""
    assert code_of(checkout) == checkout
