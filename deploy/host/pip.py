"""Run the kit's pip, and say in one line why it failed."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.host.console import Say
from deploy.host.errors import EnvironmentSetupError, KitError
from deploy.host.programs import run, without_python_variables

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_REMEDY = "check network, disk and pip's settings (pip config list), then repeat the command"


def run_pip(
    command: Sequence[str],
    failed: str,
    *,
    scratch: Path,
    say: Say | None = None,
    remedy: str = _REMEDY,
    variables: Mapping[str, str] | None = None,
    error: type[KitError] = EnvironmentSetupError,
) -> None:
    """Run pip with the words ``command``; raise ``error``, with ``failed`` and why, if it fails.

    ``say`` shows what it downloads. Interrupted, it leaves files in ``scratch``, a folder that will
    be removed. ``variables`` are added to this process's environment.
    """

    def tell(line: str) -> None:
        if say is not None and line.lstrip().startswith("Downloading "):
            say(line.strip())

    with tempfile.TemporaryDirectory(dir=scratch, prefix=".pip-") as folder:
        run(
            [*PIP, *command],
            failed=failed,
            remedy=remedy,
            environment={**without_python_variables(), "TMPDIR": folder, **(variables or {})},
            explain=_conclusion,
            line=tell,
            error=error,
        )


def _conclusion(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    complaints = [line for line in lines if line.startswith("ERROR")] or lines
    if not complaints:
        return ""
    if "DO NOT MATCH THE HASHES" in complaints[-1]:
        # The package is named on a separate line, as in "idna==3.20 from https://...:".
        named = [line for line in lines if "==" in line and " from " in line]
        name = named[-1].split(" from ")[0] if named else "a wheel"
        return f"{name} is not the locked file: its sha256 differs"
    return complaints[-1].removeprefix("ERROR: ")
