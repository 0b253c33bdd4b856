"""``scripts/kit-environment`` on a host whose Python will not do."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.host.paths import CHECKOUT

ELSEWHERE = "set PYTHON to a Python from elsewhere (conda, uv)"
OLD = '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 || exit 1\n'


def said(folder: Path, *programs: str, python: str = "") -> str:
    """What it says where only these programs are on the path, to root."""
    for name in ("bash", "dirname"):
        (folder / name).symlink_to(shutil.which(name) or name)
    for name in programs:
        (folder / name).write_text(OLD if name == "python3" else "#!/bin/sh\n")
        (folder / name).chmod(0o755)
    command = [str(CHECKOUT / "scripts" / "kit-environment")]
    environment = {"PATH": str(folder), "CXX": "c++"} | ({"PYTHON": python} if python else {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


@pytest.mark.parametrize(
    ("manager", "remedy"),
    [
        ("dnf", f"dnf install python3.12; or {ELSEWHERE}"),
        ("zypper", f"zypper install python312; or {ELSEWHERE}"),
        ("apt-get", ELSEWHERE),  # Debian 11 and Ubuntu 20.04 have one Python only
        ("pacman", ELSEWHERE),
    ],
)
def test_an_old_python_is_named_and_a_newer_one_where_there_is_one(tmp_path, manager, remedy):
    if os.geteuid() != 0:
        remedy = remedy.replace(f"{manager} install", f"as root: {manager} install")
    cause = "python3 is Python 3.9.2; the kit needs 3.10 to 3.14"
    assert said(tmp_path, "python3", manager) == f"error: {cause}\n  try: {remedy}\n"


def test_a_host_without_python_is_told_how_to_get_one(tmp_path):
    become = "" if os.geteuid() == 0 else "as root: "
    update = "" if list(Path("/var/lib/apt/lists").glob("*_Packages*")) else "apt-get update && "
    remedy = f"{become}{update}apt-get install python3 python3-venv; or {ELSEWHERE}"
    cause = "there is no Python; the kit needs 3.10 to 3.14"
    assert said(tmp_path, "apt-get") == f"error: {cause}\n  try: {remedy}\n"


def test_a_given_python_that_is_too_old_is_named(tmp_path):
    told = said(tmp_path, "python3", python="python3")
    cause = "PYTHON=python3 is not a release of Python from 3.10 to 3.14"
    assert told == f"error: {cause}\n  try: set PYTHON to another, or unset it\n"
