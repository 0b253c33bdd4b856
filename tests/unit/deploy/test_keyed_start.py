"""The launcher with small programs in the server's place; real processes, real tracing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.server import keyed_start
from deploy.server.keyed_start import KEY_NAME, PLACEHOLDER
from tests.tracing import refuse_tracing

KEY = "0123456789abcdef" * 4
OPENED = f"{KEY_NAME}={KEY}"
LAUNCHER = Path(keyed_start.__file__)

# Tells what it finds of itself, and what others and its own child see of it.
PROBE = """
import json, os, subprocess, sys
from pathlib import Path
def seen(pid):
    return [Path(f"/proc/{pid}/{name}").read_bytes().decode() for name in ("cmdline", "environ")]
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
status = Path("/proc/self/status").read_text()
print(json.dumps({
    "arguments": sys.argv[1:],
    "shown": seen("self"),
    "child": seen(child.pid),
    "variables": dict(os.environ),
    "traced": "TracerPid:\\t0\\n" not in status,
    "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
}))
child.communicate()
"""


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    return path


def launcher(key_file: Path, python: str = sys.executable) -> list[str]:
    return [python, "-IS", str(LAUNCHER), "--key-file", str(key_file), "--"]


def launch(
    key_file: Path,
    *program: str,
    python: str = sys.executable,
    prepare: Callable[[], None] | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*launcher(key_file, python), *program],
        preexec_fn=prepare,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )


def probe(key_file: Path, *arguments: str, **options: Any) -> dict[str, Any]:
    done = launch(key_file, sys.executable, "-c", PROBE, *arguments, **options)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return {**answer, "stderr": done.stderr}


def running(argument: str) -> list[int]:
    """Return the processes with this argument."""
    found = []
    for process in psutil.process_iter():
        try:
            if argument in process.cmdline():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@dataclass(frozen=True)
class Ordinary:
    """A user without rights, and a folder with all that is needed."""

    folder: Path

    def launch(self, *program: str) -> subprocess.CompletedProcess[str]:
        command = [self.folder / "keyed_start.py", "--key-file", self.folder / "key", "--"]
        root = os.geteuid() == 0
        return subprocess.run(
            # Root's own Python may lie where no other user can enter.
            ["/usr/bin/python3" if root else sys.executable, "-IS", *command, *program],
            user=65534 if root else None,
            group=65534 if root else None,
            extra_groups=[] if root else None,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def ordinary() -> Iterator[Ordinary]:
    # Others cannot enter pytest's own folders.
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "key").write_text(KEY)
    shutil.copy(LAUNCHER, folder)
    yield Ordinary(folder)
    shutil.rmtree(folder)


def test_the_program_gets_the_key_and_the_list_of_processes_the_placeholder(
    key_file: Path,
) -> None:
    found = probe(key_file, "first", f"--http=a:{PLACEHOLDER}", "", f"--grpc=a:{PLACEHOLDER}")
    assert found["stderr"] == ""
    assert found["arguments"] == ["first", f"--http=a:{OPENED}", "", f"--grpc=a:{OPENED}"]
    cmdline, environ = found["shown"]
    shown = ["first", f"--http=a:{PLACEHOLDER}", "", f"--grpc=a:{PLACEHOLDER}", ""]
    assert cmdline.split("\0")[-5:] == shown
    assert KEY not in environ


def test_the_program_s_children_know_nothing_of_the_key(key_file: Path) -> None:
    found = probe(key_file, PLACEHOLDER)
    assert found["arguments"] == [OPENED]
    assert KEY not in "".join(found["child"])


def test_the_program_s_variables_are_the_launcher_s(key_file: Path) -> None:
    variables = {"LC_CTYPE": "C.UTF-8", "EMPTY": "", "TWO": "a\nb"}
    found = probe(key_file, PLACEHOLDER, env=variables)
    assert (found["arguments"], found["variables"]) == ([OPENED], variables)


def test_a_program_without_variables_gets_the_key(key_file: Path) -> None:
    assert launch(key_file, "/bin/echo", PLACEHOLDER, env={}).stdout == f"{OPENED}\n"


def test_the_program_is_not_traced_and_has_no_child_or_open_file_that_is_not_its_own(
    key_file: Path,
) -> None:
    found = probe(key_file, PLACEHOLDER)
    alone = json.loads(subprocess.check_output([sys.executable, "-c", PROBE]))
    assert not found["traced"]
    assert found["children"] == 1, "the one it started"
    assert found["descriptors"] == alone["descriptors"]


def test_the_helper_ends(key_file: Path) -> None:
    command = [*launcher(key_file), "/bin/sh", "-c", "echo started; exec sleep 60", PLACEHOLDER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + 10
        while running(str(key_file)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not running(str(key_file))
        process.kill()


def test_number_and_end_are_the_program_s_own(key_file: Path) -> None:
    command = [*launcher(key_file), "/bin/sh", "-c", "echo $$; exec sleep 60", PLACEHOLDER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.terminate()
        assert process.wait(10) == -signal.SIGTERM
    assert launch(key_file, "/bin/sh", "-c", "exit 7", PLACEHOLDER).returncode == 7


def test_the_program_does_not_ignore_what_python_ignores(key_file: Path) -> None:
    done = launch(key_file, "/bin/grep", "-e", "SigIgn", "-e", PLACEHOLDER, "/proc/self/status")
    ignored = int(done.stdout.split()[1], 16)
    assert [n for n in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> (n - 1) & 1] == []


def test_a_program_that_is_a_script_gets_the_key(key_file: Path, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text('#!/bin/sh -e\necho "$2"\n')
    script.chmod(0o755)
    assert launch(key_file, str(script), "a", f"b:{PLACEHOLDER}").stdout == f"b:{OPENED}\n"


def test_old_pythons_can_run_it(key_file: Path) -> None:
    """The container's Python may be any from 3.8 on; those that are here are tried."""
    found = {
        os.path.realpath(path)
        for minor in range(8, 15)
        for path in [
            shutil.which(f"python3.{minor}"),
            *Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}"),
        ]
        if path is not None and subprocess.run([path, "-V"], capture_output=True).returncode == 0
    }
    assert found
    for python in found:
        done = launch(key_file, "/bin/echo", PLACEHOLDER, python=python)
        assert (done.stdout, done.stderr) == (f"{OPENED}\n", ""), python


def test_where_tracing_is_refused_the_endpoints_are_closed_and_it_is_said(
    key_file: Path,
) -> None:
    found = probe(key_file, f"a:{PLACEHOLDER}", prepare=refuse_tracing)
    assert found["stderr"] == (
        "keyed_start: the admin endpoints are closed to everybody: "
        "the key cannot be hidden: ptrace: Operation not permitted\n"
    )
    assert KEY not in json.dumps(found)
    assert found["arguments"] == [f"a:{PLACEHOLDER}"]


def test_a_program_that_may_be_run_but_not_read_is_closed(ordinary: Ordinary) -> None:
    """No process may look into such a one; so it cannot be traced either."""
    program = ordinary.folder / "echo"
    shutil.copyfile("/bin/echo", program)
    program.chmod(0o111)
    done = ordinary.launch(str(program), PLACEHOLDER)
    assert done.stderr == (
        "keyed_start: the admin endpoints are closed to everybody: "
        f"the key cannot be hidden: {program} may not be read\n"
    )
    assert done.stdout == f"{PLACEHOLDER}\n"


def test_an_ordinary_user_s_program_gets_the_key(ordinary: Ordinary) -> None:
    done = ordinary.launch("/bin/echo", PLACEHOLDER)
    assert (done.stdout, done.stderr) == (f"{OPENED}\n", "")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file or directory"),
        ("", "holds no key"),
        ("short\n", "holds no key"),
        (f"{KEY}\n{KEY}\n", "holds no key"),
        (f"{KEY}=\n", "holds no key"),
        ("\u00e9" * 20, "holds no key"),
    ],
)
def test_without_a_key_the_endpoints_are_closed_and_it_is_said(
    content: str | None, told: str, key_file: Path
) -> None:
    if content is None:
        key_file.unlink()
    else:
        key_file.write_text(content, encoding="utf-8")
    done = launch(key_file, "/bin/echo", PLACEHOLDER)
    line = f"keyed_start: the admin endpoints are closed to everybody: {key_file}: {told}\n"
    assert (done.returncode, done.stderr) == (0, line)
    assert done.stdout == f"{PLACEHOLDER}\n"


def make(path: Path, umask: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-IS", LAUNCHER, "--new-key-file", path, "--", "/bin/echo", PLACEHOLDER],
        umask=umask, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_a_key_that_it_makes_is_in_a_file_that_only_its_user_reads(tmp_path: Path) -> None:
    path = tmp_path / "key"
    done = make(path)
    assert done.stderr == ""
    assert done.stdout == f"{KEY_NAME}={keyed_start.read_key(str(path))}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_in_a_new_key_s_place_is_not_written_to(tmp_path: Path) -> None:
    """Others may write to the folder, a container's /tmp."""
    other, path = tmp_path / "other", tmp_path / "key"
    other.write_text("another's")
    path.symlink_to(other)
    assert make(path).stdout.startswith(f"{KEY_NAME}=")
    assert not path.is_symlink()
    assert other.read_text() == "another's"
    assert make(path).stdout != make(path).stdout


def test_where_no_key_can_be_made_the_endpoints_are_closed_and_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "key"
    done = make(path)
    told = f"keyed_start: the admin endpoints are closed to everybody: {path}: "
    assert (done.returncode, done.stderr) == (0, f"{told}No such file or directory\n")
    assert done.stdout == f"{PLACEHOLDER}\n"


def test_a_program_without_a_place_for_the_key_is_not_started(key_file: Path) -> None:
    done = launch(key_file, "/bin/echo", "hello")
    told = f"keyed_start: no argument holds {PLACEHOLDER}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


def test_a_program_that_is_not_there_is_named(key_file: Path) -> None:
    done = launch(key_file, "/nowhere/server", PLACEHOLDER)
    told = "keyed_start: /nowhere/server: No such file or directory\n"
    assert (done.returncode, done.stderr) == (127, told)


def test_wrong_usage_is_told(key_file: Path) -> None:
    done = subprocess.run(
        [sys.executable, LAUNCHER, key_file, "/bin/echo"], capture_output=True, text=True
    )
    usage = "keyed_start.py --key-file|--new-key-file FILE -- PROGRAM ARGUMENT..."
    assert (done.returncode, done.stderr) == (2, f"keyed_start: usage: {usage}\n")
