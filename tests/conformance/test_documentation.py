"""What the README and docs/ show of an engine, done with it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.deployment.deployment import load_deployment
from deploy.host.paths import CHECKOUT
from tests.kit import SMALL, until
from tests.pages import numlkit
from tests.programs import run_program

SIF = "/cvmfs/numl-24.10-serving.sif"


def _shown(engine: str) -> list[list[str]]:
    elsewhere = {"packed", "--verify"}  # test_packed_launch.py, tests/containers/supply
    own = ("numlkit/models:", "dist/models-")  # tests/hosts/own_models
    lines = (
        line.words for line in numlkit("up", "prepare") if not any(o in str(line) for o in own)
    )
    return [words[1:] for words in lines if engine in words and not elsewhere & {*words}]


def test_launches_that_are_shown_are_planned_or_prepared(kit):
    shown = _shown(kit.engine)
    assert shown
    for command, *words in shown:
        words = [str(CHECKOUT / "dist" / Path(SIF).name) if word == SIF else word for word in words]
        words += ["--dry-run"] if command == "up" and "--dry-run" not in words else []
        done = kit.run(command, *words)
        assert done.returncode == 0, done.stderr
        assert command == "prepare" or "tritonserver" in done.stdout


def test_site_files_for_this_engine_can_be_planned(kit):
    for file in sorted((CHECKOUT / "deploy/sites").glob("*.toml")):
        deployment = load_deployment(file, {})
        if deployment.engine == kit.engine:
            own = ["--image", str(CHECKOUT / "dist" / Path(SIF).name)] if deployment.image else []
            done = kit.run("up", str(file), *own, "--dry-run")
            assert done.returncode == 0, done.stderr
            assert "tritonserver" in done.stdout


def test_the_command_of_a_dry_run_starts_what_prepare_has_staged(kit):
    if kit.engine != "docker":
        pytest.skip("of the others, tests/unit/deploy/commands/test_commands.py")
    name = ["--name", "pasted", *SMALL]
    shown = kit.run("up", *name, "--dry-run").stdout
    assert kit.run("prepare", "--engine", "docker", *name).returncode == 0
    container = run_program(["bash", "-c", shown], check=True).stdout.strip()
    try:
        health = ["docker", "exec", container, "/opt/numl/bin/health"]
        until(lambda: subprocess.run(health, check=False).returncode == 0, "the container")
    finally:
        subprocess.run(["docker", "rm", "--force", container], check=True, capture_output=True)
        shutil.rmtree(kit.folder("pasted"), ignore_errors=True)
