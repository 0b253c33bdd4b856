"""Make the execution environment in the cache: from the lock, whole or not at all.

It has two layers, so that a change in ``numl_serving`` does not cost another installation
of everything else: a virtual environment with the locked packages, and on top of it one that adds
the ``numl_serving`` wheel. Triton is given the upper one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.console import Say
from deploy.environment.interpreter import Interpreter
from deploy.environment.lock import Lock
from deploy.environment.pip import PIP, get_locked, run_pip
from deploy.environment.serving import serving_digest, serving_wheel
from deploy.errors import EnvironmentSetupError
from deploy.files import locked, remove_folder, write_atomically
from deploy.programs import run

MARKER = "numlkit-environment.json"
_LAYOUT = "3"  # changes when this module lays an environment out differently


@dataclass(frozen=True)
class Environment:
    """An execution environment on this host.

    Attributes:
        folder: Its prefix; ``bin/activate`` and ``lib/libpythonX.Y.so`` are in it.
        digest: Names its contents: lock, interpreter, ``numl_serving``.
        python_version: ``X.Y.Z`` of its interpreter.
    """

    folder: Path
    digest: str
    python_version: str

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """The folder of ``numl_serving``; Python finds the locked packages from there."""
        short = ".".join(self.python_version.split(".")[:2])
        return self.folder / "lib" / f"python{short}" / "site-packages"

    @property
    def libpython(self) -> Path:
        """The shared library that the stub loads."""
        short = ".".join(self.python_version.split(".")[:2])
        return self.folder / "lib" / f"libpython{short}.so.1.0"


def plan_environment(
    cache: Path, lock: Lock, interpreter: Interpreter, source: Path
) -> tuple[Path, Environment]:
    """Return the lower layer's folder and the environment, made or not yet made.

    Args:
        cache: The kit's cache folder.
        lock: What is in it.
        interpreter: What it runs on.
        source: Folder of the ``numl_serving`` distribution (``envs/numl``).
    """
    base = hashlib.sha256(
        "\0".join((_LAYOUT, lock.digest, interpreter.version, str(interpreter.executable))).encode()
    ).hexdigest()
    digest = hashlib.sha256(f"{base}{serving_digest(source)}".encode()).hexdigest()
    folder = cache / "environments"
    return folder / f"locked-{base[:16]}", Environment(
        folder=folder / f"numl-{digest[:16]}", digest=digest, python_version=interpreter.version
    )


def ensure_environment(
    cache: Path, lock: Lock, interpreter: Interpreter, source: Path, say: Say
) -> Environment:
    """Return the environment, made if it is not there yet.

    Args:
        cache: The kit's cache folder.
        lock: What goes into it.
        interpreter: What it runs on.
        source: Folder of the ``numl_serving`` distribution.
        say: Is told what happens.

    Raises:
        EnvironmentSetupError: With pip's reason if a package cannot be had.
    """
    base, environment = plan_environment(cache, lock, interpreter, source)
    marker = environment.folder / MARKER
    if marker.exists():
        return environment
    with locked(cache / "environments" / ".lock"):
        if not (base / MARKER).exists():
            with _whole_or_not_at_all(base):
                _install_locked(base, lock, interpreter, say)
        if not marker.exists():
            wheel = serving_wheel(cache, source, say)
            say("installing numl_serving")
            with _whole_or_not_at_all(environment.folder):
                _install_serving(base, environment, interpreter, wheel)
    return environment


@contextmanager
def _whole_or_not_at_all(folder: Path) -> Iterator[None]:
    """Remove what is made in a folder if the block does not finish it."""
    try:
        yield
    except BaseException:
        remove_folder(folder)
        raise


def _install_locked(base: Path, lock: Lock, interpreter: Interpreter, say: Say) -> None:
    # Scripts in a virtual environment name its folder, so it is made in place; the
    # marker, written last, is what makes it count.
    say(f"making a virtual environment for Python {interpreter.version}")
    _make_virtual_environment(base, interpreter)
    get_locked(_pip(base), lock, "install", scratch=base, say=say, given=None)
    _mark(base, {"lock": lock.digest, "python": interpreter.version})


def _install_serving(
    base: Path, environment: Environment, interpreter: Interpreter, wheel: Path
) -> None:
    folder = environment.folder
    _make_virtual_environment(folder, interpreter)
    site = environment.site_packages
    below = base / site.relative_to(folder)
    (site / "locked-packages.pth").write_text(f"{below}\n", encoding="utf-8")
    environment.libpython.symlink_to(interpreter.libpython)
    # mpi4py looks for the MPI library, and that for its own, in the prefix it runs in.
    for entry in (base / "lib").iterdir():
        if entry != below.parent:
            (folder / "lib" / entry.name).symlink_to(entry)
    command = [*_pip(folder), str(wheel)]
    run_pip(command, "pip cannot install numl_serving", scratch=folder)
    _mark(folder, {"digest": environment.digest, "python": environment.python_version})


def _make_virtual_environment(folder: Path, interpreter: Interpreter) -> None:
    # Without pip: a bare Debian's Python cannot put one there, and the kit has its own.
    command = [str(interpreter.executable), "-m", "venv", "--without-pip", "--clear", str(folder)]
    run(command, failed="python -m venv failed", error=EnvironmentSetupError)


def _pip(folder: Path) -> list[str]:
    """Return the kit's pip, told to install exactly what is named into ``folder``."""
    pip = [*PIP, "--python", str(folder / "bin" / "python")]
    # What is imported is compiled then, which is a small part.
    return [*pip, "install", "--no-deps", "--no-compile", "--progress-bar=off"]


def _mark(folder: Path, facts: dict[str, str]) -> None:
    write_atomically(folder / MARKER, json.dumps(facts) + "\n")
