"""Runs a command as a person would who typed it, in this process or in one of its own."""

import importlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from deploy.deployment.state import DeploymentFolder, ProcessId
from deploy.host.paths import CHECKOUT
from tests.programs import run_program
from tests.unit.deploy.deployment.test_state import make_state

DEAD = ProcessId(pid=2**22 + 1, started=1)  # above the largest that Linux gives
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def variables_of(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), "PATH": "/usr/bin:/bin", "TERM": "dumb", **more}


def run_here(words: Sequence[str], home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process as a person would who typed ``numlkit`` and the words."""
    written = [io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2)]
    handlers = {number: signal.getsignal(number) for number in ENDING}
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(written[0]),
        redirect_stderr(written[1]),
    ):
        patch.chdir(CHECKOUT)
        patch.setattr("sys.argv", ["numlkit", *words])
        for name in [name for name in os.environ if name.startswith("XDG_")]:
            patch.delenv(name)
        for name, value in variables_of(home, **more).items():
            patch.setenv(name, value)
        try:
            status = importlib.import_module(f"deploy.commands.{words[0]}").main(words[1:])
        except SystemExit as exit:
            status = exit.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    said = [stream.buffer.getvalue().decode() for stream in written]
    return subprocess.CompletedProcess(words, int(status), *said)


def run_process(
    words: Sequence[str],
    home: Path,
    python: str = sys.executable,
    cwd: Path = CHECKOUT,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    variables = variables_of(home, **more)
    return run_program([python, *words], cwd=cwd, env=variables)


def deployed(home: Path, name: str = "numl", **changes: Any) -> DeploymentFolder:
    """Write the state of a deployment of whoever has this home."""
    folder = DeploymentFolder(name, home / ".local/state/numlkit/deployments")
    folder.write_state(make_state(name, **changes))
    return folder
