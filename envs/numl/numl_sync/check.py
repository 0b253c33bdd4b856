"""Do new versions give their golden answers, in the environment that will serve them?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from numl_sync.errors import ReleaseError

LONGEST_S = 600
"""Time limit (s) for all versions of a release together."""
MEANWHILE_S = 30.0
"""How often (s) something else is done meanwhile."""


def check_answers(versions: Sequence[Path], meanwhile: Callable[[], None]) -> None:
    """Load every NuGraph version in its own process, and compare its golden answer.

    Args:
        meanwhile: Called every `MEANWHILE_S`.

    Raises:
        ReleaseError: One cannot be loaded, or its answer differs.
    """
    if not versions:
        return
    command = [sys.executable, "-IB", "-m", "numl_serving.check", *map(str, versions)]
    # It reads weights and numbers, and runs no code of the release; it needs no keys either.
    variables = {
        name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ
    }
    variables["OMP_NUM_THREADS"] = "1"
    with subprocess.Popen(
        command, env=variables, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            said, complaints = _output(process, meanwhile)
        except BaseException:  # this program may have been told to end, too
            process.kill()
            raise
    reports = _reports(said)
    for report in reports:
        if report.get("ok") is False and {"model", "error"} <= report.keys():
            name = Path(str(report["model"])).name
            reason = str(report["error"]).replace(f"{report['model']}/", "")
            raise ReleaseError(f"{name} does not give its golden answer here: {reason}")
    status = process.returncode
    if status != 0 or sum(report.get("ok") is True for report in reports) != len(versions):
        words = complaints.strip().splitlines() or [f"exit status {status}"]
        raise ReleaseError(f"golden answers cannot be computed here: {words[-1]}")


def _output(process: subprocess.Popen[str], meanwhile: Callable[[], None]) -> tuple[str, str]:
    ends = time.monotonic() + LONGEST_S
    while True:
        try:
            return process.communicate(timeout=MEANWHILE_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() >= ends:
                raise ReleaseError(f"no golden answers after {LONGEST_S} s") from None
            meanwhile()


def _reports(said: str) -> list[dict[str, Any]]:
    # Libraries print to the same place, some of them dictionaries.
    reports = []
    for line in said.splitlines():
        if line.startswith("{"):
            with suppress(ValueError):
                reports.append(json.loads(line))
    return reports
