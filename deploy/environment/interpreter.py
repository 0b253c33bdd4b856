"""Find a Python for the execution environment, and the libpython its stub needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.errors import EnvironmentSetupError

_PROBE = """
import json, sys, sysconfig
variables = sysconfig.get_config_vars("LIBDIR", "INSTSONAME", "MULTIARCH")
# Behind a virtual environment stands the interpreter it was made from.
executable = getattr(sys, "_base_executable", sys.executable)
print(json.dumps([list(sys.version_info[:3]), executable, sys.base_prefix, *variables]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter fit to be embedded in a stub.

    Attributes:
        executable: The interpreter.
        version: ``X.Y.Z``.
        libpython: The shared library that the stub loads.
    """

    executable: Path
    version: str
    libpython: Path


def find_interpreter(wanted: str) -> Interpreter:
    """Return a Python ``wanted`` (``X.Y``) whose shared library is there.

    Looked at, in this order: the Python that runs the kit, ``pythonX.Y`` on PATH,
    pyenv's versions.

    Raises:
        EnvironmentSetupError: If there is none, or none with a libpython.
    """
    without_library: list[Path] = []
    for executable in _candidates(wanted):
        facts = _probe(executable)
        if facts is None or not facts[0].startswith(f"{wanted}."):
            continue
        version, base, places = facts
        for place in places:
            if place.is_file():
                return Interpreter(executable=base, version=version, libpython=place)
        without_library.append(executable)
    if without_library:
        raise _no_library(without_library[0], wanted)
    raise EnvironmentSetupError(
        f"no Python {wanted} found, which the execution environment is locked for",
        f"sudo apt-get install python{wanted} python{wanted}-venv libpython{wanted}",
    )


def given_interpreter(executable: Path, wanted: str) -> Interpreter:
    """Return the Python at ``executable``, if it is a ``wanted`` (``X.Y``) with libpython.

    Raises:
        EnvironmentSetupError: Naming what is not as it has to be.
    """
    try:
        facts = _probe(executable)
    except OSError as error:
        raise EnvironmentSetupError(f"{executable}: {error.strerror}") from None
    if facts is None:
        raise EnvironmentSetupError(f"{executable} does not run as a Python")
    version, base, places = facts
    if not version.startswith(f"{wanted}."):
        raise EnvironmentSetupError(
            f"{executable} is Python {version}, the environment is locked for {wanted}"
        )
    for place in places:
        if place.is_file():
            return Interpreter(executable=base, version=version, libpython=place)
    raise _no_library(executable, wanted)


def version_of(executable: Path) -> str | None:
    """Return ``X.Y.Z`` of the Python at ``executable``; None if it does not run as one."""
    try:
        facts = _probe(executable)
    except OSError:
        return None
    return facts[0] if facts is not None else None


def _no_library(executable: Path, wanted: str) -> EnvironmentSetupError:
    return EnvironmentSetupError(
        f"{executable} has no shared libpython{wanted}, which Triton's stub loads",
        f"sudo apt-get install libpython{wanted} (Debian, Ubuntu), "
        f"or a Python built with --enable-shared",
    )


def _candidates(wanted: str) -> Iterator[Path]:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == wanted:
        yield Path(sys.executable)
    on_path = shutil.which(f"python{wanted}")
    if on_path is not None:
        yield Path(on_path)
    for path in (Path(f"/usr/bin/python{wanted}"), Path(f"/usr/local/bin/python{wanted}")):
        if path.exists():
            yield path
    # pyenv's: on PATH it has shims that answer only for the version it has been told to use.
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for versions in (root / "versions", Path(sys.base_prefix).parent):
        yield from sorted(versions.glob(f"{wanted}.*/bin/python{wanted}"), reverse=True)


def _probe(executable: Path) -> tuple[str, Path, list[Path]] | None:
    """Return version, real interpreter and places of libpython; None if it does not run."""
    done = subprocess.run(
        [str(executable), "-I", "-c", _PROBE], capture_output=True, text=True, check=False
    )
    try:
        version, base, prefix, libdir, soname, multiarch = json.loads(done.stdout)
    except ValueError:  # it failed, or it is something else than a Python
        return None
    numbers = ".".join(str(part) for part in version)
    short = ".".join(str(part) for part in version[:2])
    # A statically linked interpreter (Debian's) names its archive here; the shared
    # library, if installed, has the usual name all the same.
    name = soname if soname and ".so" in soname else f"libpython{short}.so.1.0"
    folders = [libdir, f"{prefix}/lib", f"/usr/lib/{multiarch}", "/usr/lib64", "/usr/lib"]
    return numbers, Path(base), [Path(folder) / name for folder in folders if folder]
