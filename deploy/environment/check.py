"""Check an execution environment before a server is given it.

Triton itself does not: with a wrong interpreter or a missing library it hangs, or is
ready and answers nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deploy.environment.install import Environment
from deploy.environment.interpreter import version_of
from deploy.errors import EnvironmentSetupError, RepositoryError
from deploy.files import digest_of, write_atomically
from deploy.server.distribution import TritonDistribution


def check_stub_fits(environment: Environment, distribution: TritonDistribution) -> None:
    """Check interpreter and libpython against the stub.

    Raises:
        EnvironmentSetupError: If the stub would start with another Python, or not at all.
    """
    folder, remake = environment.folder, f"rm -r {environment.folder}, and repeat the command"
    short = ".".join(environment.python_version.split(".")[:2])
    if short != distribution.stub_python:
        raise _another_python(folder, short, distribution, remake)
    for path in (folder / "bin" / "activate", environment.libpython):
        if not path.exists():
            raise EnvironmentSetupError(
                f"execution environment {folder} has no {path.name}", remake
            )
    found = version_of(environment.python)
    if found is None:
        raise EnvironmentSetupError(
            f"execution environment {folder}: its bin/python does not start", remake
        )
    if not found.startswith(f"{distribution.stub_python}."):
        raise _another_python(folder, found, distribution, remake)


def _another_python(
    folder: Path, version: str, distribution: TritonDistribution, remedy: str
) -> EnvironmentSetupError:
    return EnvironmentSetupError(
        f"execution environment {folder} has Python {version}, "
        f"the stub is built for {distribution.stub_python}",
        remedy,
    )


def check_models_answer(
    environment: Environment,
    models: Sequence[Path],
    *,
    stamps: Path,
    threads: int,
) -> None:
    """Check that every model imports, loads and gives its golden answer.

    A check that passed is remembered by the digest of environment and model files,
    since it takes seconds.

    Args:
        environment: The environment to check.
        models: Folders with ``model.json``, weights and ``golden.npz``.
        stamps: Where passed checks are remembered.
        threads: Threads of each model instance.

    Raises:
        EnvironmentSetupError: If the environment itself does not work.
        RepositoryError: If a model does not load or gives another answer.
    """
    total = hashlib.sha256(environment.digest.encode())
    for folder in models:
        files = (folder / "model.json", folder / "weights.safetensors", folder / "golden.npz")
        total.update(digest_of(files, base=folder).encode())
    stamp = stamps / total.hexdigest()
    if stamp.exists():
        return
    # -P: the working directory must not hide a package of the environment.
    command = [str(environment.python), "-P", "-m", "numl_serving.check", *map(str, models)]
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    variables["OMP_NUM_THREADS"] = str(threads)
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    # Libraries may print to the same place: a report is a line that is a JSON object.
    for line in (text for text in done.stdout.splitlines() if text.startswith("{")):
        report = json.loads(line)
        if report.get("ok") is False:
            raise RepositoryError(f"model {report['model']}: {report['error']}")
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise EnvironmentSetupError(
            f"execution environment {environment.folder} does not work: "
            f"{said[-1] if said else f'exit status {done.returncode}'}",
            f"rm -r {environment.folder.parent} and repeat the command",
        )
    write_atomically(stamp, "")
