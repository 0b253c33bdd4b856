"""The kit from a bare checkout, and its commands under one name: help, versions, completion."""

import io
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from deploy import __version__
from deploy.host.paths import CHECKOUT
from deploy.main import COMMANDS, main
from tests.programs import run_program, write_program
from tests.unit.deploy.commands.running import DEAD, deployed, run_process

NUMLKIT = Path(sys.executable).with_name("numlkit")


@pytest.fixture
def clone(tmp_path):
    """A clone without the kit's environment, and a Python that has nothing."""
    shutil.copytree(CHECKOUT / "deploy", tmp_path / "clone" / "deploy")
    venv.create(tmp_path / "bare")
    return tmp_path / "clone"


@pytest.mark.parametrize(
    ("command", "settings"),
    [("up", {}), ("build", {"PYTHONSAFEPATH": "1"})],
    ids=["up", "build, with Python told not to look there"],
)
def test_a_python_without_the_kit_s_dependencies_says_what_sets_them_up(
    clone, tmp_path, command, settings
):
    python = str(tmp_path / "bare/bin/python")
    done = run_process([f"deploy/{command}.py"], tmp_path, python, clone, **settings)
    assert (done.returncode, done.stdout) == (2, "")
    missing = "error: the kit's Python environment is missing\n  try: scripts/kit-environment\n"
    assert done.stderr == missing


@pytest.mark.parametrize(("flag", "status"), [("--help", 0), ("bogus", 2)])
def test_quickstart_with_words_says_what_it_is_and_does_nothing(flag, status):
    done = run_program([CHECKOUT / "scripts" / "quickstart", flag])
    assert done.returncode == status
    assert len(done.stdout.splitlines()) == 3
    assert "\nusage: scripts/quickstart    (no arguments: " in done.stdout


def test_an_interrupt_while_a_command_is_imported_is_no_traceback(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["numlkit", "status"])
    interrupted = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("deploy.main.importlib.import_module", interrupted)
    assert main() == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_server_is_asked_over_http_is_no_traceback(number, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        words = [NUMLKIT, "smoke", "--url", f"http://127.0.0.1:{silent.getsockname()[1]}"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
            connection, _ = silent.accept()
            with connection:
                assert connection.recv(1 << 16).startswith(b"GET /v2/health/live")
                process.send_signal(number)
                said = process.communicate()[1]
    assert (process.returncode, said) == (
        128 + number, "error: interrupted\n  try: run the command again\n"
    )  # fmt: skip


def test_a_parent_that_ignores_its_childrens_end_hides_no_status(monkeypatch):
    def command(_words: list[str]) -> int:
        return subprocess.run(["sh", "-c", "exit 7"], check=False).returncode

    module = SimpleNamespace(main=command)
    monkeypatch.setattr("deploy.main.importlib.import_module", lambda _: module)
    monkeypatch.setattr(sys, "argv", ["numlkit", "status"])
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert main() == 7
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.slow
def test_a_bare_python_continues_in_the_environment_that_quickstart_made(clone, tmp_path):
    write_program(clone / ".venv" / "bin" / "python", f'exec {sys.executable} "$@"')
    (clone / ".venv" / ".numlkit-complete").touch()
    done = run_process(
        ["deploy/up.py", "--help"], tmp_path, str(tmp_path / "bare/bin/python"), clone,
        PYTHONPATH=others_libraries(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: numlkit up ")


def others_libraries(folder: Path) -> str:
    """What a framework's shell has in PYTHONPATH: libraries of another Python."""
    (folder / "others").mkdir()
    (folder / "others" / "pydantic.py").write_text("raise ImportError('of another Python')\n")
    return str(folder / "others")


def test_libraries_that_pythonpath_names_are_not_the_kit_s(tmp_path):
    done = _typed("numlkit status", tmp_path, PYTHONPATH=others_libraries(tmp_path))
    assert "Traceback" not in done.stderr
    assert "no deployment" in done.stderr


def test_numlkit_says_in_a_line_what_each_command_is_for(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    listed = dict(re.findall(r"^  (\w+) +(\S.*\.)$", shown, re.M))
    assert list(listed) == [*COMMANDS, "completion"]
    assert all(len(line) <= 100 for line in shown.splitlines())


def test_numlkit_tells_its_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"numlkit {__version__}\n"
    assert f'\nversion = "{__version__}"\n' in (CHECKOUT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("words", "error", "remedy"),
    [
        (["staus"], "no command 'staus'", "numlkit status"),
        (["xyzzy"], "no command 'xyzzy'", "numlkit --help"),
        ([], "no command given", "numlkit --help"),
    ],
)
def test_numlkit_names_the_nearest_command(words, error, remedy, capsys):
    assert main(words) == 2
    assert capsys.readouterr() == ("", f"error: {error}\n  try: {remedy}\n")


def _typed(line: str, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell, in which ``numlkit`` is the kit's."""
    script = f'numlkit() {{ "{NUMLKIT}" "$@"; }}\n{line}'
    variables |= {"PATH": "/usr/bin:/bin", "HOME": str(home)}
    return run_program(["bash", "-c", script], cwd=home, env=variables)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_without_somewhere_to_write_does_its_work(closed, tmp_path):
    folder = deployed(tmp_path, supervisor=DEAD)
    status = _typed(f"numlkit status {closed}", tmp_path)
    assert (status.returncode, "Traceback" in status.stderr) == (1, False)
    assert _typed(f"numlkit down {closed}", tmp_path).returncode == 0
    assert not folder.state_file.exists()


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("numlkit --help", 0, ""),
        ("numlkit up --help", 0, ""),
        ("numlkit down --json", 0, ""),
        ("numlkit status --json", 1, "error: no deployment named 'numl'\n"),
    ],
)
def test_a_reader_of_the_output_who_has_gone_changes_no_status(line, status, said, tmp_path):
    done = _typed(f"{line} | true; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert (done.returncode, done.stderr.partition("  try: ")[0]) == (status, said)


@pytest.mark.parametrize(
    "line", ["numlkit --help", "numlkit down --json", "numlkit completion zsh"]
)
def test_output_that_cannot_be_written_is_an_error_in_a_line(line, tmp_path):
    done = _typed(f"{line} >/dev/full", tmp_path)
    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        [
            "error: disk full: No space left on device",
            "  try: free space there (df -h), then run the command again",
        ],
    )


def test_a_name_that_is_not_utf_8_is_shown(tmp_path, monkeypatch, capfdbinary):
    # As Python has it where the locale is en_US.UTF-8, say; C.UTF-8 would let it pass.
    output = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", output)
    model = tmp_path / os.fsdecode(b"models\xff") / "m"
    model.mkdir(parents=True)
    (model / "config.pbtxt").write_text("?")
    assert main(["check", str(model.parent)]) == 1
    assert rb"/models\udcff/m/config.pbtxt: not a model config" in capfdbinary.readouterr().out


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch, capsys):
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))
    assert main(["status"]) == 2
    assert capsys.readouterr().err == (
        "error: HOME is not set, and the system knows no home of this user\n"
        "  try: set HOME, or XDG_STATE_HOME\n"
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_numlkit_prints_a_shell_s_completion(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "numlkit" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("numlkit do", {"doctor", "down"}),
        ("numlkit doctor --f", {"--fix"}),
        ("numlkit up --engine ap", {"apptainer"}),
        ("numlkit completion z", {"zsh"}),
    ],
)
def test_bash_completes_commands_options_and_choices(line, words):
    script = (
        f'eval "$(numlkit completion bash)"; COMP_LINE={shlex.quote(line)}; '
        f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        "COMP_POINT=${#COMP_LINE}; "
        "COMP_TYPE=9; _python_argcomplete numlkit; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    path = f"{NUMLKIT.parent}:/usr/bin:/bin"
    done = run_program(["bash", "-c", script], env={"PATH": path}, check=True)
    assert set(done.stdout.split()) == words, done.stderr


@pytest.mark.parametrize(("umask", "mode"), [(0, 0o755), (0o002, 0o775), (0o077, 0o700)])
def test_what_a_command_makes_is_not_for_all_to_write_whatever_the_umask(umask, mode, tmp_path):
    before = os.umask(umask)
    try:
        assert main(["add", "m", "--like", "gat", "--into", str(tmp_path / "models")]) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "models").stat().st_mode) == mode
