"""Compile modules beforehand: the environment is read-only where it is used.

Without it every start compiles what it imports anew. The files are of the unchecked
kind (PEP 552): valid whatever the modification times, and the same in every build.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path

from deploy.errors import EnvironmentSetupError
from deploy.packing.conda_package import PLACEHOLDER
from deploy.packing.slimming import is_compiled

# A process compiles a fixed set of files: what a code object shares with others depends
# on what was compiled before it.
_FILES_PER_PROCESS = 250

_COMPILE = """
import json, py_compile, sys
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
for source, shown in json.load(sys.stdin):
    # Some packages carry templates or code for other Pythons in files named *.py.
    py_compile.compile(source, dfile=shown, quiet=2, invalidation_mode=mode)
"""


def compile_modules(tree: Path, python: Path, executor: Executor) -> list[Future[None]]:
    """Start to compile the modules below ``tree`` that serving imports.

    Args:
        tree: Files as they lie in a prefix.
        python: An interpreter of the version that will read them.
        executor: Runs the processes.

    Returns:
        What to wait for.
    """
    paths = sorted(path for path in tree.rglob("*.py") if path.is_file())
    named = [(path, path.relative_to(tree).as_posix()) for path in paths]
    modules = [(str(path), name) for path, name in named if is_compiled(name) and _is_final(path)]
    return [
        executor.submit(_compile, modules[start : start + _FILES_PER_PROCESS], python)
        for start in range(0, len(modules), _FILES_PER_PROCESS)
    ]


def _is_final(path: Path) -> bool:
    """Tell whether an installation leaves the module as it is, with no prefix put in."""
    return PLACEHOLDER.encode() not in path.read_bytes()


def _compile(modules: Sequence[tuple[str, str]], python: Path) -> None:
    # -S, -E: nothing of this host's Python set-up has a part in the result.
    done = subprocess.run(
        [str(python), "-S", "-E", "-s", "-c", _COMPILE],
        input=json.dumps(modules),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise EnvironmentSetupError(
            f"{python} cannot compile modules: {said[-1] if said else done.returncode}"
        )
