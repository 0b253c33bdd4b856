"""What ``numlkit build`` plans, and what it refuses before it makes anything."""

import json

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
