"""What ``numlkit build`` plans, and what it refuses before it makes anything."""

import json
import sys
from typing import NoReturn

import pytest

from deploy.artefacts import build
from deploy.host.errors import DeploymentError
from deploy.main import main
from tests.unit.deploy.commands.running import run_here


def test_a_dry_run_of_a_build_shows_the_plan_beside_what_is_missing(tmp_path):
    words = ["build", "--target", "sif", "--dry-run", "--out", f"{tmp_path}/dist"]
    done = run_here([*words, "--json"], tmp_path, PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["plan"]["sif"] == f"{tmp_path}/dist/numl-24.10-serving.sif"
    assert [problem["error"] for problem in shown["problems"]] == [
        "apptainer is not installed; a .sif needs Apptainer and squashfs-tools"
    ]
    readable = run_here(words, tmp_path, PATH=str(tmp_path)).stdout
    assert readable.startswith("plan\n")
    assert "to fix first" in readable


def test_a_build_without_a_usable_python_is_refused_before_anything_is_made(tmp_path):
    done = run_here(["build", "--target", "env", "--python", "/bin/ls"], tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: /bin/ls is not a working Python")
    assert list(tmp_path.iterdir()) == []


def test_a_build_into_a_file_is_refused_at_once(tmp_path):
    done = run_here(["build", "--target", "env", "--out", "/etc/passwd"], tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: /etc/passwd is not a folder: cannot put the packed environment there",
        "  try: choose another --out",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "done"),
    [
        ([], ["Python fetched", "environments planned"]),
        (["--dry-run"], ["environments planned"]),
        (["--python", sys.executable], ["environments planned"]),
    ],
    ids=["build", "dry run", "given Python"],
)
def test_a_sites_environments_are_planned_when_the_kits_python_is_there(
    tmp_path, monkeypatch, flags, done
):
    """In an empty cache they would be of this host's Python, and of another in the next build."""
    seen: list[str] = []

    def plan(*_given: object, **_named: object) -> NoReturn:
        seen.append("environments planned")
        raise DeploymentError("so far")

    monkeypatch.setattr(build, "fetch_if_reachable", lambda _say: seen.append("Python fetched"))
    monkeypatch.setattr("deploy.commands.build.site_content", plan)
    words = ["build", "--target", "env", "--models-dir", str(tmp_path), *flags]
    assert main(words) == 2
    assert seen == done
