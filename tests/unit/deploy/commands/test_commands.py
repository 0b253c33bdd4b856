"""The commands as a person types them."""

import json
import os
import platform
import shlex
import socket
from pathlib import Path

import pytest

from deploy.commands import up
from deploy.deployment.deployment import Ports
from deploy.deployment.state import DeploymentFolder
from deploy.environment.environment import plan_environment
from deploy.host.paths import cache_folder
from tests.certificates import Authority
from tests.unit.deploy.commands.running import DEAD, deployed, run_here, run_process
from tests.unit.deploy.deployment.test_state import make_state


@pytest.mark.slow
@pytest.mark.parametrize("file", ["deploy/build.py", "scripts/infer.py"])
def test_a_command_can_be_started_as_a_file_of_the_checkout(file, tmp_path):
    done = run_process([file, "--help"], tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: numlkit {Path(file).stem} ")


@pytest.mark.parametrize("command", ["status", "logs", "smoke", "down"])
def test_asking_for_a_deployment_that_is_not_there_says_so(command, tmp_path):
    done = run_here([command, "--name", "none"], tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "try: numlkit up --name none" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("flags", [[], ["--name", "stopped"], ["--all"]])
def test_stopping_what_does_not_run_is_no_error(flags, tmp_path):
    # A deployment that was stopped leaves its folder, with the log.
    (tmp_path / ".local/state/numlkit/deployments/stopped").mkdir(parents=True)
    done = run_here(["down", *flags], tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


def test_stopping_all_leaves_another_hosts_alone_and_goes_on_after_a_fault(tmp_path):
    away, here, broken = (
        deployed(tmp_path, name, node=node, supervisor=DEAD)
        for name, node in (("away", "nodeA"), ("here", platform.node()), ("broken", ""))
    )
    broken.state_file.write_text("{")
    done = run_here(["down", "--all", "--json"], tmp_path)
    assert done.returncode == 2
    assert "broken/state.json" in json.loads(done.stdout)["error"]
    assert away.state_file.exists()
    assert not here.state_file.exists()


def test_stopping_what_never_was_names_those_that_are_there(tmp_path):
    for name in ("one", "other"):
        deployed(tmp_path, name)
    done = run_here(["down", "--name", "nope"], tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: no deployment named 'nope'\n  try: --name with one of: one, other\n"
    )


@pytest.mark.parametrize("command", ["down", "smoke", "status", "logs", "load", "infer x.h5"])
def test_an_empty_name_does_not_stand_for_the_deployment_of_commands_without_one(command, tmp_path):
    # As of a script's variable that is not set.
    folder = deployed(tmp_path, supervisor=DEAD, ports=Ports(http=1, grpc=2, metrics=3))
    done = run_here([*command.split(), "--name", ""], tmp_path)
    assert done.returncode == 2
    assert "error: argument --name: an empty name names no deployment\n" in done.stderr
    assert folder.state_file.exists()


def test_files_for_tls_are_not_ignored_where_a_deployment_has_none(tmp_path):
    authority = Authority(tmp_path, "site")
    deployed(tmp_path, ports=Ports(http=1, grpc=2, metrics=3))
    done = run_here(["smoke", "--ca", str(authority.file)], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: grpc://127.0.0.1:2 is without TLS, but --ca, --cert and")


def test_status_shows_where_clients_find_the_server(tmp_path):
    deployed(tmp_path, ports=Ports(http=1, grpc=2, metrics=3))
    done = run_here(["status"], tmp_path)
    assert done.returncode == 1  # nothing answers there
    assert done.stdout.splitlines()[-2:] == [
        "http://127.0.0.1:1  grpc://127.0.0.1:2",
        "phase ready; healed stubs 0 times, restarted the server 0 times",
    ]


def test_a_refused_launch_leaves_no_deployment(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ["--engine", "local", "--ports", f"{port},{port - 1},{port - 2}"]
        done = run_here(["up", *flags], tmp_path)
    assert done.returncode == 2
    assert f"http port {port} " in done.stderr
    assert list((tmp_path / ".local/state/numlkit/deployments").iterdir()) == []


def test_a_dry_run_shows_a_command_and_changes_nothing(tmp_path):
    done = run_here(["up", "--dry-run", "--models", "nugraph3", "--json"], tmp_path)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["plan"]
    assert plan["deployment"]["models"] == ["nugraph3"]
    assert plan["arguments"][0].endswith("/bin/tritonserver")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_begins_with_what_its_command_needs(tmp_path):
    state = tmp_path / "state"
    flags = ["--models", "nugraph3", "--instances", "2", "--dry-run", "--engine", "local"]
    done = run_here(["up", *flags], tmp_path, XDG_STATE_HOME=str(state))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    repository = state / "numlkit/deployments/numl/model_repository"
    assert lines[:5] == [
        "# first: numlkit prepare --models nugraph3 --instances 2 --engine local",
        f"# which stages the model repository in {repository}",
        "# 3 x nugraph3",
        "env \\",
        "  -i \\",
    ]
    assert all(line.endswith(" \\") for line in lines[3:-1])
    assert list(tmp_path.iterdir()) == []


def test_what_is_shown_first_of_a_signed_image_is_understood_by_prepare(tmp_path, monkeypatch):
    choose = up.chosen

    def unsigned(options, *more):
        options.verify = None
        return choose(options, *more)

    monkeypatch.setattr(up, "chosen", unsigned)
    flags = ["--verify", "cosign.pub", "--models", "nugraph3", "--engine", "local"]
    done = run_here(["up", "--dry-run", *flags], tmp_path)
    assert (
        done.stdout.splitlines()[0] == "# first: numlkit prepare --models nugraph3 --engine local"
    )


@pytest.fixture
def prepared(tmp_path):
    """Folders for a command that finds the environment made, and has a state of its own."""
    if not plan_environment("serving").python.exists():
        pytest.skip("needs the execution environment (numlkit prepare)")
    return {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CACHE_HOME": str(cache_folder().parent),
        # Its home is another one, where pyenv's Pythons would not be found.
        "PYENV_ROOT": os.environ.get("PYENV_ROOT") or str(Path.home() / ".pyenv"),
    }


def test_prepare_makes_what_the_command_of_a_dry_run_needs(tmp_path, prepared):
    flags = ["--engine", "local", "--name", "hand", "--models", "nugraph3", "--threads", "1"]
    shown = run_here(["up", "--dry-run", *flags], tmp_path, **prepared).stdout
    first = shlex.split(shown.splitlines()[0].removeprefix("# first: "))
    done = run_here(first[1:], tmp_path, **prepared)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{plan_environment('serving').folder}\n"
    folder = tmp_path / "state/numlkit/deployments/hand"
    assert [model.name for model in (folder / "model_repository").iterdir()] == ["nugraph3"]
    assert (folder / "model_repository/nugraph3/1/weights.safetensors").is_file()
    words = shlex.split(shown.replace("\\\n", ""), comments=True)
    assert f"--model-repository={folder / 'model_repository'}" in words
    assert not (folder / "state.json").exists()


def test_prepare_leaves_a_deployment_that_is_there_alone(tmp_path, prepared):
    folder = DeploymentFolder("numl", tmp_path / "state/numlkit/deployments")
    folder.write_state(make_state("numl"))
    (folder.repository / "served").mkdir(parents=True)
    done = run_here(["prepare"], tmp_path, **prepared)
    assert done.returncode == 0, done.stderr
    assert "deployment numl exists" in done.stderr
    assert [path.name for path in folder.repository.iterdir()] == ["served"]


@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "XDG_CACHE_HOME"])
@pytest.mark.parametrize("engine", ["local", "docker", "apptainer"])
@pytest.mark.parametrize("command", ["up", "up --dry-run", "prepare"])
def test_a_folder_that_cannot_be_shown_is_refused_at_once(variable, engine, command, tmp_path):
    words = [*command.split(), "--engine", engine]
    done = run_here(words, tmp_path, **{variable: f"{tmp_path}/a\ntouch b"})
    assert done.returncode == 2
    folder = rf"'{tmp_path}/a\ntouch b/numlkit'"
    assert done.stderr.splitlines() == [
        f"error: {variable}: {folder} has characters that cannot be shown",
        f"  try: set {variable} to a folder with a plain name",
    ]
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
