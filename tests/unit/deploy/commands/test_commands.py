"""The commands as a person types them."""

import json
import os
import platform
import shlex
import socket
import sys
from pathlib import Path

import pytest

from deploy.commands import up
from deploy.deployment.deployment import Ports
from deploy.deployment.state import DeploymentFolder, ProcessId
from deploy.environment.environment import plan_environment
from deploy.environment.lock import Flavour
from deploy.host.paths import cache_folder
from deploy.main import COMMANDS
from tests.certificates import Authority
from tests.unit.deploy.commands.running import run_here, run_process
from tests.unit.deploy.deployment.test_state import make_state


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_explains_itself(command, tmp_path):
    done = run_here([command, "--help"], tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: numlkit {command} ")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["up", "build"])
def test_two_commands_can_be_started_as_files_of_the_checkout(command, tmp_path):
    done = run_process([f"deploy/{command}.py", "--help"], tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: numlkit {command} ")


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_usage_is_one_line_and_where_help_is(command, tmp_path):
    wanted = dict.fromkeys(("publish", "published", "rollback", "check", "lock", "golden"), "x")
    wanted |= {"infer": "x.h5", "evaluate": "x.h5", "add": "x --like gcn --into x", "merge": "x x"}
    files = wanted.get(command, "").split()
    done = run_here([command, *files, "--colour"], tmp_path)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: unrecognized arguments")
    assert lines[1] == f"  try: numlkit {command} --help"


@pytest.mark.parametrize(
    ("script", "flags", "complaint"),
    [
        ("simulate_events", [], "the following arguments are required: OUT.h5"),
        ("simulate_events", ["x.h5", "--events", "0"], "--events must be at least 1"),
        ("simulate_events", ["x.h5", "--hits-range", "9", "8"], "--hits-range needs LOW < HIGH"),
        ("simulate_events", ["x.h5", "--events", "few"], "argument --events: invalid int"),
        ("simulate_events", ["x.h5", "--seed", "-1"], "--seed must be from 0"),
        ("simulate_events", ["/no/x.h5"], "no such folder: /no"),
        ("train_demo", ["--events", "0"], "--events must be at least 1"),
        ("train_demo", ["--epochs", "0"], "--epochs must be at least 1"),
        ("train_demo", ["--model", "nugraph1"], "argument --model: invalid choice: 'nugraph1'"),
        ("import_checkpoint", ["x.ckpt"], "the following arguments are required: --model"),
        ("import_checkpoint", ["x", "--model", "y"], "argument --model: invalid choice: 'y'"),
    ],
)
def test_wrong_usage_of_a_script_is_one_line_and_where_help_is(script, flags, complaint, tmp_path):
    python, cache = sys.executable, {}
    if script in ("train_demo", "import_checkpoint"):
        flavour: Flavour = "cpu" if script == "train_demo" else "serving"
        environment = plan_environment(flavour)
        if not environment.python.exists():
            pytest.skip("needs the execution environment (numlkit prepare --full)")
        cache = {"XDG_CACHE_HOME": str(cache_folder().parent)}
    if script == "train_demo":
        python = str(environment.python)
        # Should it start, then not on the checkout's own files.
        flags = [*flags, "--out", str(tmp_path), "--events-out", str(tmp_path / "x.h5")]
    done = run_process([f"scripts/{script}.py", *flags], tmp_path, python, **cache)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"error: {complaint}")
    assert lines[1:] == [f"  try: python3 scripts/{script}.py --help"]
    assert done.stdout == ""


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
    deployments = tmp_path / ".local/state/numlkit/deployments"
    for name, node in (("away", "nodeA"), ("here", platform.node())):
        (deployments / name).mkdir(parents=True)
        state = make_state(name, node=node, supervisor=ProcessId(pid=2**22 + 1, started=1))
        (deployments / name / "state.json").write_text(state.model_dump_json())
    (deployments / "broken").mkdir()
    (deployments / "broken" / "state.json").write_text("{")
    done = run_here(["down", "--all", "--json"], tmp_path)
    assert done.returncode == 2
    assert "broken/state.json" in json.loads(done.stdout)["error"]
    assert (deployments / "away" / "state.json").exists()
    assert not (deployments / "here" / "state.json").exists()


def test_stopping_what_never_was_names_those_that_are_there(tmp_path):
    deployments = tmp_path / ".local/state/numlkit/deployments"
    for name in ("one", "other"):
        (deployments / name).mkdir(parents=True)
        (deployments / name / "state.json").touch()
    done = run_here(["down", "--name", "nope"], tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: no deployment named 'nope'\n  try: --name with one of: one, other\n"
    )


@pytest.mark.parametrize(
    "flags",
    [
        ["--models", ""],
        ["--models", "../x"],
        ["--name", "-rf"],
        ["--ports", "1,2"],
        ["--ports", "a,b,c"],
        ["--instances", "0"],
        ["--checkpoint", "nugraph3"],
        ["--checkpoint", "other=x"],
        ["--listen", "not an address"],
        ["--tls-cert", "/none.pem"],
        ["--tls-cert", "/none.pem", "--tls-key", "/none.key"],
    ],
)
def test_a_wrong_flag_is_refused_before_anything_is_done(flags, tmp_path):
    done = run_here(["up", "--dry-run", *flags], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--instances", "abc"], "--instances: 'abc' is not a whole number from 1 to 256"),
        (["up", "--threads", "1.5"], "--threads: 1.5 is not a whole number from 1 to 256"),
        (["up", "--cpus", "0"], "--cpus: 0 is not a whole number from 1 to 1024"),
        (["up", "--timeout", "-1"], "--timeout: -1 is not a number from 0.001 to 3600"),
        (["up", "--ports", "0,1,x"], "--ports: 0 is not a whole number from 1 to 65535"),
        (
            ["up", "--ports", "1,2"],
            "--ports: '1,2' is not three numbers\n  try: --ports HTTP,GRPC,METRICS, as in "
            "8000,8001,8002",
        ),
        (
            ["status", "--timeout", "-1"],
            "argument --timeout: '-1' is not a number of seconds above 0",
        ),
        (["smoke", "--timeout", "x"], "argument --timeout: 'x' is not a number of seconds above 0"),
        (["logs", "--tail", "-1"], "argument --tail: '-1' is not a number of lines"),
    ],
)
def test_a_wrong_number_is_told_with_its_option_and_what_is_wanted(words, said, tmp_path):
    done = run_here([words[0], *words[1:]], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {said}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["infer", "x.h5", "--url", "localhost", "--name", "numl"],
            "argument --name: not allowed with argument --url",
        ),
        (
            ["smoke", "--url", "localhost", "--name", "numl"],
            "--url and --name both choose the server: leave one out",
        ),
        (
            ["smoke", "--servers", "none", "--name", "numl"],
            "--servers and --name both choose the server: leave one out",
        ),
        (
            ["smoke", "--servers", "none", "--verify", "key.pub"],
            "--verify checks a deployment's image, but --servers names a server",
        ),
        (
            ["down", "--name", "numl", "--all"],
            "--name and --all both choose what is stopped: leave one out",
        ),
        *(
            (
                [command, "x.h5", "--servers", "none", *flags],
                "--servers names servers by their gRPC addresses, with TLS where they have it",
            )
            for command in ("infer", "evaluate")
            for flags in (["--ssl"], ["--protocol", "http"])
        ),
        (
            ["logs", "--follow", "--json"],
            "--follow never ends, but --json prints one document: leave one out",
        ),
    ],
)
def test_flags_that_contradict_each_other_are_refused(words, said, tmp_path):
    done = run_here(words, tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"error: {said}"
    assert list(tmp_path.iterdir()) == []


def test_files_for_tls_are_not_ignored_where_a_deployment_has_none(tmp_path):
    authority = Authority(tmp_path, "site")
    folder = DeploymentFolder("numl", tmp_path / ".local/state/numlkit/deployments")
    folder.write_state(make_state("numl", ports=Ports(http=1, grpc=2, metrics=3)))
    done = run_here(["smoke", "--ca", str(authority.file)], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: grpc://127.0.0.1:2 is without TLS, but --ca, --cert and")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["infer", "x.h5", "--out", "a b/r.h5"], "mkdir -p 'a b', or another --out"),
        (["evaluate", "x.h5", "--plot", "a b/m.png"], "mkdir -p 'a b'"),
        (["load", "--plot", "a b/m.png"], "mkdir -p 'a b'"),
        (["load", "--url", "http://h"], "--url grpc[s]://HOST:PORT"),
        (["evaluate", "x.h5", "--plot", "deploy/m.pdf"], "--plot with a file called *.png"),
        (["evaluate", "x.h5", "--plot", ""], "--plot with a file called *.png"),
    ],
)
def test_what_is_advised_can_be_typed(words, says, tmp_path):
    done = run_here(words, tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[1] == f"  try: {says}"


def test_status_shows_where_clients_find_the_server(tmp_path):
    folder = DeploymentFolder("numl", tmp_path / ".local/state/numlkit/deployments")
    folder.write_state(make_state("numl", ports=Ports(http=1, grpc=2, metrics=3)))
    done = run_here(["status"], tmp_path)
    assert done.returncode == 1  # nothing answers there
    assert done.stdout.splitlines()[-2:] == [
        "http://127.0.0.1:1  grpc://127.0.0.1:2",
        "phase ready; healed stubs 0 times, restarted the server 0 times",
    ]


@pytest.mark.parametrize("command", ["up", "prepare"])
def test_a_checkpoint_that_is_none_is_refused_before_anything_is_made(command, tmp_path):
    (tmp_path / "own.ckpt").touch()
    flags = ["--checkpoint", f"nugraph3={tmp_path}/own.ckpt"]
    done = run_here([command, *flags], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: checkpoint for nugraph3: {tmp_path}/own.ckpt: ")
    assert [path.name for path in tmp_path.iterdir()] == ["own.ckpt"]


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
@pytest.mark.parametrize("command", [["up"], ["up", "--dry-run"], ["prepare"]])
def test_a_folder_that_cannot_be_shown_is_refused_at_once(variable, engine, command, tmp_path):
    words = [command[0], "--engine", engine, *command[1:]]
    done = run_here(words, tmp_path, **{variable: f"{tmp_path}/a\ntouch b"})
    assert done.returncode == 2
    folder = rf"'{tmp_path}/a\ntouch b/numlkit'"
    assert done.stderr.splitlines() == [
        f"error: {variable}: {folder} has characters that cannot be shown",
        f"  try: set {variable} to a folder with a plain name",
    ]
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
