"""Runs the kit's commands in processes that have been forked after the imports.

What a command imports takes longer than most of what these tests have it do. All else is as when
a person types it: a process of its own, with its words, its folder, its variables and two pipes.
That each command imports what it uses, tests/unit/deploy/commands show.
"""

import ctypes
import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from deploy.host.paths import CHECKOUT
from deploy.main import COMMANDS, main

# What commands import only when they need it.
_LATER = (
    *("numpy", "rich.console", "prometheus_client.parser", "cryptography.x509", "boto3", "docker"),
    *("tritonclient.http", "tritonclient.grpc", "grpc_health.v1.health_pb2_grpc", "spython.main"),
    *("deploy.engines.local", "deploy.engines.docker", "deploy.engines.apptainer"),
)
_CLONE_NEWNS = 0x20000  # of linux/sched.h
_context = multiprocessing.get_context("forkserver")
_NOW = (f"deploy.commands.{name}" for name in COMMANDS)
_context.set_forkserver_preload([__name__, *_NOW, *_LATER])


def run_command(
    words: Sequence[str],
    variables: Mapping[str, str],
    timeout: float,
    *,
    cwd: Path = CHECKOUT,
    before: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run ``numlkit COMMAND ...`` or ``python3 scripts/SCRIPT.py ...``.

    Args:
        words: All of that but numlkit, or the Python.
        variables: The environment.
        timeout: In seconds.
        cwd: Where.
        before: Commands of the shell that change what it sees, in a mount name space of its own.

    Raises:
        subprocess.TimeoutExpired: After ``timeout`` seconds it had not ended, or what it started
            still had its output; it was killed.
    """
    outputs = [_Output() for _ in range(2)]
    arguments = (list(words), dict(variables), cwd, before, *(output.writer for output in outputs))
    process = _context.Process(target=_run, args=arguments)
    process.start()
    deadline = time.monotonic() + timeout
    for output in outputs:
        output.begin()
    process.join(timeout)
    if process.exitcode is None or not all(output.ended(deadline) for output in outputs):
        process.kill()
        process.join()
        raise subprocess.TimeoutExpired(list(words), timeout)
    said, complained = (output.text for output in outputs)
    return subprocess.CompletedProcess(list(words), process.exitcode, said, complained)


class _Output:
    """A pipe that is read to its end, in a thread.

    Attributes:
        writer: The end that the command gets.
        text: What was read, once it has ended.
    """

    def __init__(self) -> None:
        self._reader, self.writer = _context.Pipe(duplex=False)
        self.text = ""
        self._thread = threading.Thread(target=self._read, daemon=True)

    def begin(self) -> None:
        self.writer.close()
        self._thread.start()

    def ended(self, deadline: float) -> bool:
        self._thread.join(max(0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _read(self) -> None:
        with self._reader, os.fdopen(os.dup(self._reader.fileno()), encoding="utf-8") as stream:
            self.text = stream.read()


def _run(
    words: list[str], variables: dict[str, str], cwd: Path, before: str, *writers: Connection
) -> None:
    for number, writer in enumerate(writers, start=1):
        os.dup2(writer.fileno(), number)
        writer.close()
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    if before:
        assert ctypes.CDLL(None).unshare(_CLONE_NEWNS) == 0
        subprocess.run(["sh", "-c", f"mount --make-rprivate / && {before}"], check=True)
    if words[0] in COMMANDS:
        sys.argv = ["numlkit", *words]
        sys.exit(main())
    sys.argv, sys.path[0] = words, str((CHECKOUT / words[0]).parent)
    runpy.run_path(words[0], run_name="__main__")
