"""The commands that the README and the pages in docs/ show work.

Each is understood by the command's own parser, and a launch can be planned. Those that ask a server
are run against one in tests/integration/test_documentation.py.
"""

import importlib
import json
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from deploy.commands import up
from deploy.host.command_line import Parser
from deploy.host.paths import CHECKOUT, MODEL_REPOSITORY
from deploy.main import COMMANDS
from numl_job.options import split_words
from tests.kit import free_ports
from tests.pages import PAGES, README, Line, console, inline, numlkit
from tests.programs import run_program

SCRIPTS_WITH_PARSER = ("benchmark.py", "benchmark_build.py", "import_checkpoint.py")
# What a launch needs that this host may lack. tests/conformance plans those of its engine.
ELSEWHERE = {
    *("docker", "apptainer", "packed", "--tls-cert", "--gpu", "--verify", "gpvm.toml", "--triton")
}
# Flags of apptainer and tritonserver.
OF_OTHERS = (
    "--cache-config",
    "--containall",
    "--force",
    "--grpc-restricted-protocol",
    "--metrics-config",
)


@cache
def parser(command: str) -> Parser:
    found: Parser = importlib.import_module(f"deploy.commands.{command}").parser()
    return found


def command_of(words: list[str]) -> tuple[str, list[str]] | None:
    """Return the command of numlkit and its words, however it is spelled."""
    if words[0] == "numlkit" and words[1] in COMMANDS:
        return words[1], words[2:]
    path = Path(words[1]) if words[0] in ("python", "python3") and len(words) > 1 else Path()
    return (path.stem, words[2:]) if path.parent.name == "deploy" else None


def script_of(line: Line) -> tuple[str, list[str]] | None:
    words = line.words
    words = words[1:] if words[0] in ("python", "python3") else words
    return (words[0], words[1:]) if words[0].startswith("scripts/") else None


@pytest.mark.parametrize("line", [*console(), *inline()], ids=str)
def test_what_is_shown_is_understood(line):
    found = command_of(line.words)
    if found is not None:
        command, words = found
        parser(command).parse_args(split_words(words)[0])  # ends the test if it does not understand
    elif line.words[:2] != ["numlkit", "completion"] and (script := script_of(line)) is not None:
        assert (CHECKOUT / script[0]).is_file()


@pytest.mark.slow
def test_what_is_shown_of_a_script_is_understood():
    shown = {f"scripts/{name}": [] for name in SCRIPTS_WITH_PARSER}
    for script, words in filter(None, map(script_of, [*console(), *inline()])):
        shown.get(script, []).append(words)
    assert all(shown.values())
    code = """
import json, runpy, sys
for path, lines in json.loads(sys.argv.pop()).items():
    sys.argv[:] = [path]
    parser = runpy.run_path(path)["parser"]()
    for words in lines:
        parser.parse_args(words)
"""
    done = run_program([sys.executable, "-c", code, json.dumps(shown)], cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr


LOCAL_LAUNCHES = [line for line in numlkit("up") if not ELSEWHERE & {*line.words}]


@pytest.mark.parametrize("line", LOCAL_LAUNCHES, ids=str)
def test_a_launch_that_is_shown_can_be_planned(line, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    site = tmp_path / "models"
    (site / "vision" / "1").mkdir(parents=True)
    (site / "vision" / "config.pbtxt").write_text('backend: "python"\nmax_batch_size: 0\n')
    (site / "vision" / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    file = str(CHECKOUT / "deploy/sites/cpu-node.toml")
    checkpoint = f"nugraph3={MODEL_REPOSITORY / 'nugraph3' / '1'}"
    given = {"/site/models": str(site), "nugraph3=mine": checkpoint}
    given |= {"deploy/sites/cpu-node.toml": file, "site.toml": file}
    words = [given.get(word, word) for word in line.words[2:]]
    if any(Path(word.partition("=")[2] or word).suffix in (".ckpt", ".json") for word in words):
        words = ["--models", "nugraph3", "--checkpoint", checkpoint]
    words += [] if "--engine" in words else ["--engine", "local"]
    ports = ",".join(map(str, free_ports().model_dump().values()))
    words += ["--ports", ports]  # a file may name some that are taken
    status = up.main([*words, "--dry-run", "--quiet"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    assert "tritonserver" in captured.out


def test_every_command_is_shown_in_the_readme():
    text = README.read_text()
    assert [command for command in COMMANDS if f"`numlkit {command}" not in text] == []


@pytest.fixture(scope="module")
def flags():
    """Every flag of a command or a script."""
    helps = [parser(command).format_help() for command in COMMANDS]
    scripts = [path for path in (CHECKOUT / "scripts").iterdir() if path.is_file()]
    scripts += (CHECKOUT / "gallery").glob("*/*.py")
    scripts.append(CHECKOUT / "envs" / "numl" / "numl_sync" / "command.py")
    return set(re.findall(r"--[a-z][a-z-]+", "".join([*helps, *(p.read_text() for p in scripts)])))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_flag_that_is_named_is_one_of_a_command(page, flags):
    text = re.sub(r"`python -m [^`]*`", "", page.read_text())
    named = set(re.findall(r"`(--[a-z][a-z-]+)", text))
    assert named <= {*flags, "--semantic-classes", "--event-classes", *OF_OTHERS}
