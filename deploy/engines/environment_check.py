"""Check an execution environment before a server is given it.

Triton itself does not: with a wrong interpreter or a missing library it hangs, or is
ready and answers nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from deploy.environment.check import check_answers
from deploy.environment.environment import Environment
from deploy.environment.interpreter import version_of
from deploy.host.errors import EnvironmentSetupError
from deploy.host.files import digest_of, write_atomically
from deploy.triton.distribution import TritonDistribution


def check_stub_fits(environment: Environment, distribution: TritonDistribution) -> None:
    """Check the environment's interpreter and libpython against the stub."""
    folder, wanted = environment.folder, distribution.stub_python
    found, problem = version_of(environment.python), None
    for path in (folder / "bin" / "activate", environment.libpython):
        if not path.exists():
            problem = f"has no {path.name}"
    if found is None:
        problem = problem or "has a bin/python that does not start"
    elif not found.startswith(f"{wanted}."):
        problem = f"has Python {found}; the stub is built for {wanted}"
    if problem is not None:
        remedy = f"rm -r {folder}, and repeat the command"
        raise EnvironmentSetupError(f"execution environment {folder} {problem}", remedy)


def check_models_answer(
    environment: Environment, models: Sequence[Path], *, stamps: Path, threads: int
) -> None:
    """Check that every model imports, loads and gives its reference output.

    Since that takes seconds, a check that passed is remembered by the digest of environment and
    model files.
    """
    total = hashlib.sha256(environment.digest.encode())
    for folder in models:
        files = (folder / "model.json", folder / "weights.safetensors", folder / "golden.npz")
        total.update(digest_of(files, base=folder).encode())
    stamp = stamps / total.hexdigest()
    if stamp.exists():
        return
    folder = environment.folder
    check_answers(
        folder,
        models,
        threads=threads,
        failed=f"execution environment {folder} does not work",
        remedy=f"rm -r {folder.parent} and repeat the command",
    )
    write_atomically(stamp, "")
