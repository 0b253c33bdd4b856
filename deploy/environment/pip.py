"""Run the kit's pip: what it is asked for, and in one line why it has failed."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.console import Say
from deploy.environment.lock import Lock
from deploy.errors import EnvironmentSetupError
from deploy.programs import run

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_REMEDY = "check network, disk and pip's settings (pip config list), then repeat the command"


def run_pip(
    command: Sequence[str],
    failed: str,
    *,
    scratch: Path,
    say: Say | None = None,
    remedy: str = _REMEDY,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run pip; raise with its conclusion if it fails.

    Args:
        command: Its command line.
        failed: What it means if it fails.
        scratch: Where it works, in a folder that goes: ended early, pip leaves what it has there.
        say: Is told what it downloads.
        remedy: What to do if it fails.
        variables: Environment variables that it has besides this process's.

    Raises:
        EnvironmentSetupError: If it fails.
    """

    def tell(line: str) -> None:
        if say is not None and line.lstrip().startswith("Downloading "):
            say(line.strip())

    with tempfile.TemporaryDirectory(dir=scratch, prefix=".pip-") as folder:
        inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        run(
            command,
            failed=failed,
            remedy=remedy,
            environment={**inherited, "TMPDIR": folder, **(variables or {})},
            explain=_conclusion,
            line=tell,
            error=EnvironmentSetupError,
        )


def get_locked(
    command: Sequence[str], lock: Lock, verb: str, *, scratch: Path, say: Say, given: Path | None
) -> None:
    """Have pip install or download all that a lock names.

    Args:
        command: Its command line, up to the requirements.
        lock: The lock.
        verb: What it does, for messages: ``get`` or ``install``.
        scratch: Where it works.
        say: Is told what happens.
        given: The only folder it may take wheels from; None: it asks the network.

    Raises:
        EnvironmentSetupError: With pip's reason if a package cannot be had.
    """
    remedy = _REMEDY if given is None else f"put the locked wheels into {given}"
    if lock.torch is not None:
        version, failed = lock.versions["torch"], f"pip cannot {verb} torch"
        torch = [*command, "--requirement", str(lock.torch)]
        say(f"torch {version}")
        try:
            run_pip(torch, failed, scratch=scratch, say=say, remedy=remedy)
        except EnvironmentSetupError:
            if given is not None or not version.endswith("+cpu"):
                raise
            # The wheel is not where pip looks by default: ask PyTorch's own index for it.
            say(f"torch from {TORCH_CPU_INDEX}")
            run_pip([*torch, "--index-url", TORCH_CPU_INDEX], failed, scratch=scratch, say=say)
    say(f"{len(lock.versions) - (lock.torch is not None)} packages")
    packages = [*command, "--require-hashes", "--requirement", str(lock.packages)]
    failed = f"pip cannot {verb} the locked packages"
    run_pip(packages, failed, scratch=scratch, say=say, remedy=remedy)


def _conclusion(said: str) -> str:
    """Return what pip's complaints come to, in one line; empty if it has none."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    complaints = [line for line in lines if line.startswith("ERROR")] or lines
    if not complaints:
        return ""
    if "DO NOT MATCH THE HASHES" in complaints[-1]:
        # The package is named in a line of its own, as in "idna==3.20 from https://...:".
        named = [line for line in lines if "==" in line and " from " in line]
        name = named[-1].split(" from ")[0] if named else "a wheel"
        return f"{name} is not the locked file, its sha256 is another"
    return complaints[-1].removeprefix("ERROR: ")
