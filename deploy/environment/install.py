"""Make the execution environment in the cache: from the lock, whole or not at all.

It has two layers, so that a change in ``numl_serving`` costs seconds and not another
installation of torch: a virtual environment with the locked packages, and on top of it
one that adds the ``numl_serving`` wheel. Triton is given the upper one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.console import Say
from deploy.environment.interpreter import Interpreter
from deploy.environment.lock import Lock
from deploy.errors import EnvironmentSetupError
from deploy.files import digest_of, locked, remove_folder, write_atomically

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
MARKER = "numlkit-environment.json"
_LAYOUT = "2"  # changes when this module lays an environment out differently


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


def serving_digest(source: Path) -> str:
    """Return the digest of ``numl_serving``, as it lies in ``envs/numl``."""
    files = [source / "pyproject.toml"]
    files += [
        p for p in (source / "numl_serving").rglob("*") if p.suffix in {".py", ".cpp", ".typed"}
    ]
    return digest_of(files, base=source)


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
            say("installing numl_serving")
            with _whole_or_not_at_all(environment.folder):
                _install_serving(base, environment, interpreter, source)
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
    say(f"installing torch {lock.versions['torch']}")
    torch = [*_pip(base), "--requirement", str(lock.torch)]
    try:
        _run(torch, "pip cannot install torch")
    except EnvironmentSetupError:
        if not lock.versions["torch"].endswith("+cpu"):
            raise
        # The wheel is not where pip looks by default: ask PyTorch's own index for it.
        say(f"installing torch from {TORCH_CPU_INDEX}")
        _run([*torch, "--index-url", TORCH_CPU_INDEX], "pip cannot install torch")
    say(f"installing {len(lock.versions) - 1} packages")
    packages = [*_pip(base), "--require-hashes", "--requirement", str(lock.packages)]
    _run(packages, "pip cannot install the locked packages", _progress(say))
    _mark(base, {"lock": lock.digest, "python": interpreter.version})


def _install_serving(
    base: Path, environment: Environment, interpreter: Interpreter, source: Path
) -> None:
    folder = environment.folder
    _make_virtual_environment(folder, interpreter)
    site = next((folder / "lib").glob("python3.*")) / "site-packages"
    below = next((base / "lib").glob("python3.*")) / "site-packages"
    (site / "locked-packages.pth").write_text(f"{below}\n", encoding="utf-8")
    environment.libpython.symlink_to(interpreter.libpython)
    # mpi4py looks for the MPI library, and that for its own, in the prefix it runs in.
    for entry in (base / "lib").iterdir():
        if entry != below.parent:
            (folder / "lib" / entry.name).symlink_to(entry)
    # Built from a copy: setuptools leaves build folders beside what it builds.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        copy = Path(scratch) / "numl"
        ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
        shutil.copytree(source, copy, ignore=ignored)
        command = [*_pip(folder), "--no-build-isolation", str(copy)]
        _run(command, "pip cannot install numl_serving")
    _mark(folder, {"digest": environment.digest, "python": environment.python_version})


def _make_virtual_environment(folder: Path, interpreter: Interpreter) -> None:
    # Without pip: a bare Debian's Python cannot put one there, and the kit has its own.
    command = [str(interpreter.executable), "-m", "venv", "--without-pip", "--clear", str(folder)]
    _run(command, "python -m venv failed")


def _pip(folder: Path) -> list[str]:
    """Return the kit's pip, told to install exactly what is named into ``folder``."""
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    return [*pip, "install", "--no-deps", "--progress-bar=off", "--disable-pip-version-check"]


def _mark(folder: Path, facts: dict[str, str]) -> None:
    write_atomically(folder / MARKER, json.dumps(facts) + "\n")


def _progress(say: Say) -> Say:
    def line(text: str) -> None:
        if text.startswith("Downloading "):
            say(text.strip())

    return line


def _run(command: Sequence[str], failed: str, line: Say | None = None) -> None:
    """Run ``command``; raise with the last line that says ERROR if it fails."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True)
    reader.start()
    try:
        for text in process.stdout:
            if line is not None:
                line(text)
        status = process.wait()
    except BaseException:
        # pip does its work in a process below the one that was started.
        with suppress(psutil.NoSuchProcess):
            for below in psutil.Process(process.pid).children(recursive=True):
                below.kill()
        process.kill()
        process.wait()
        raise
    reader.join()
    if status != 0:
        said = [text.strip() for text in errors if text.strip()]
        # pip's last complaint is its conclusion; the ones before list what it has seen.
        complaints = [text for text in said if text.startswith("ERROR")] or said
        reason = complaints[-1] if complaints else f"exit status {status}"
        raise EnvironmentSetupError(
            f"{failed}: {reason.removeprefix('ERROR: ')}",
            "check network, disk and pip's settings (pip config list), then repeat the command",
        )
