"""Make the lock of an environment from its specification, with pip's resolver.

``requirements.in`` is an ordinary requirement file. ``data.in``, if there is one, names packages
that are wanted for the files in them, and are taken without what they depend on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deploy.environment.interpreter import Interpreter, find_interpreter, no_interpreter
from deploy.environment.lock import PYTHON, Flavour, file_of
from deploy.environment.private_python import ensure_private_python, private_python
from deploy.environment.requirements import render
from deploy.environment.sources import DATA, LOCKS, REQUIREMENTS
from deploy.host.console import Say
from deploy.host.errors import EnvironmentSetupError
from deploy.host.files import write_atomically
from deploy.host.programs import run_pip

_MAKER = "numlkit lock"


def lock(
    source: Path, flavour: Flavour, *, python: str = PYTHON, numpy_below: int | None, say: Say
) -> list[Path]:
    """Write the lock of a flavour for a Python (``X.Y``), torch's apart where it is wanted.

    ``numpy_below`` is the first numpy that the stubs of the Triton in use cannot handle.
    """
    specification = source / REQUIREMENTS
    if not specification.is_file():
        remedy = "write it: one package a line, as for pip install --requirement"
        raise EnvironmentSetupError(f"{specification}: no such file", remedy)
    interpreter = find_interpreter((python,)) or private_python((python,))
    if interpreter is None:
        raise no_interpreter((python,))
    ensure_private_python(interpreter, say)
    say(f"resolving {specification}")
    numpy = f"numpy<{numpy_below}" if numpy_below is not None else "numpy"
    asked = ["--requirement", str(specification), numpy]
    found = resolve(interpreter, asked, cpu=flavour != "gpu", say=say)
    if (source / DATA).is_file():
        data = ["--no-deps", "--requirement", str(source / DATA)]
        found += resolve(interpreter, data, cpu=True, say=say)
    torch = [package for package in found if package["metadata"]["name"] == "torch"]
    rest = [package for package in found if package not in torch]
    what = f"The environment {source.name}, flavour {flavour}"
    where = f"Python {python}, Linux x86-64"
    locks = source / LOCKS
    files = {file_of(locks, flavour, python): render(rest, f"{what}: {where}", _MAKER)}
    apart = file_of(locks, f"torch-{flavour}", python)
    if torch:
        files[apart] = render(torch, f"torch for that: {where}", _MAKER)
    for path, text in files.items():
        write_atomically(path, text)
    if not torch:
        apart.unlink(missing_ok=True)  # it would be installed all the same
    return list(files)


def resolve(
    interpreter: Interpreter, arguments: Sequence[str], *, cpu: bool, say: Say
) -> list[dict[str, Any]]:
    """Return what pip would install for ``arguments``: entries of its report."""
    with TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = ["--python", str(interpreter.executable), "install", "--dry-run"]
        command += ["--ignore-installed", "--quiet", "--only-binary=:all:"]
        # A folder of CPU wheels in the host's settings would win over the index.
        command += [] if cpu else ["--isolated"]
        command += ["--report", str(report), *arguments]
        run_pip(command, "pip finds no versions that fit", scratch=Path(scratch), say=say)
        return list(json.loads(report.read_text(encoding="utf-8"))["install"])
