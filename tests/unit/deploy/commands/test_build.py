"""What ``numlkit build`` refuses before it makes anything."""

import json

import pytest

from tests.unit.deploy.commands.running import run_here


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "--target is missing: env, image, sif or all"),
        (["--target", "boat"], "argument --target: invalid choice: 'boat'"),
        (["--target", "sif", "--base", "alpine"], "argument --base: invalid choice: 'alpine'"),
        (["--target", "sif", "--flavour", "tpu"], "argument --flavour: invalid choice: 'tpu'"),
        (["--target", "sif", "--triton", "1.0"], "--triton: '1.0' is neither a release"),
        (
            ["--target", "sif", "--backends", "onnxruntime"],
            "--backends onnxruntime: without python",
        ),
        (
            ["--target", "sif", "--base", "ngc", "--triton", "26.07"],
            "--base ngc is for Triton 24.10",
        ),
        (["--target", "sif", "--compressor", "xz"], "argument --compressor: invalid choice"),
        (["--target", "sif", "--base-digest", "sha256:1"], "--base-digest 'sha256:1': expected"),
        (["--target", "env", "--base-digest", f"sha256:{'1' * 64}"], "--base-digest needs"),
        (["--target", "env", "--wheels", "/no"], "--wheels /no: no such file or folder"),
        (["--target", "sif", "--wire", "x"], "--wire needs --target env or all"),
        (["--target", "sif", "--environment", "ocr"], "--environment is for --target env alone"),
    ],
)
def test_a_wrong_flag_of_a_build_is_refused_before_anything_is_done(flags, complaint, tmp_path):
    done = run_here(["build", *flags], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {complaint}")
    assert len(done.stderr.splitlines()) <= 2
    if "no such file" in complaint:
        assert done.stderr.endswith("  try: correct it, or leave out --wheels\n")
    assert list(tmp_path.iterdir()) == []


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
