"""Have an environment's Python check the models before a server or a user gets it.

Triton itself does not: with a wrong interpreter or a missing library it hangs, or reports ready and
answers nothing.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from deploy.environment.environment import Environment
from deploy.host.command_line import quote
from deploy.host.errors import EnvironmentSetupError, RepositoryError
from deploy.host.failures import complaint, plain_lines
from deploy.host.files import digest_of, write_atomically
from deploy.host.paths import cache_folder
from deploy.host.programs import run
from numl_formats.repository import DATA_FILES

_EXCEPTION = re.compile(r"[\w.]+(Error|Exception)\b")


def check_answers(
    folder: Path, models: Sequence[Path], *, threads: int, failed: str, remedy: str | None = None
) -> None:
    """Check that models give their reference outputs in an environment as Triton starts it.

    That is: activated, in place. A wrong answer is a RepositoryError; any other failure is an
    EnvironmentSetupError, with ``failed`` before the reason.
    """
    # From another folder: the working directory must not hide a package of the environment.
    script = 'source "$0/bin/activate" && cd / && exec python -m numl_serving.check "$@"'
    kept = ("PATH", "HOME", "TMPDIR", "LANG")
    variables = {name: os.environ[name] for name in kept if name in os.environ}
    # Nothing is written to it, just as in use.
    variables |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": str(threads)}
    answer = run(
        ["bash", "-c", script, folder.resolve(), *(path.resolve() for path in models)],
        failed=failed,
        remedy=remedy,
        environment=variables,
        explain=_reason,
        error=EnvironmentSetupError,
    )
    prefixes = [report["prefix"] for report in _reports(answer) if "prefix" in report]
    if folder.resolve() not in [Path(prefix).resolve() for prefix in prefixes]:
        raise EnvironmentSetupError(f"{failed}: its bin/activate selects another Python", remedy)


def check_models_answer(environment: Environment, models: Sequence[Path], *, threads: int) -> None:
    """Check that every model imports, loads and gives its reference output.

    Since that takes seconds, a check that passed is remembered by the digest of environment and
    model files.
    """
    total = hashlib.sha256(environment.digest.encode())
    for folder in models:
        total.update(digest_of([folder / name for name in DATA_FILES], base=folder).encode())
    stamp = cache_folder() / "checked" / total.hexdigest()
    if stamp.exists():
        return
    folder = environment.folder
    check_answers(
        folder,
        models,
        threads=threads,
        failed=f"execution environment {folder} does not work",
        remedy=f"rm -r {quote(str(folder.parent))} and run the command again",
    )
    write_atomically(stamp, "")


def wrong_model(said: str) -> str | None:
    """Return what ``numl_serving.check`` says about the first model it found wrong."""
    for report in _reports(said):
        if report.get("ok") is False:
            return f"{report['model']}: {report['error']}"
    return None


def _reason(said: str) -> str:
    wrong = wrong_model(said)
    if wrong is not None:
        raise RepositoryError(f"model {wrong}")
    # In a chain of exceptions, the first says why.
    exceptions = [line for line in said.splitlines() if _EXCEPTION.match(line)]
    return exceptions[0] if exceptions else complaint(said)


def _reports(said: str) -> list[dict[str, Any]]:
    # Libraries print to the same place, some of them dictionaries.
    reports = []
    for line in plain_lines(said):
        if line.startswith("{"):
            with suppress(ValueError):
                reports.append(json.loads(line))
    return reports
