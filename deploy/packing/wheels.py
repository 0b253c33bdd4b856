"""The wheels that a lock names: in the cache, whole or not at all."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.console import Say
from deploy.environment.install import TORCH_CPU_INDEX
from deploy.environment.lock import Lock
from deploy.errors import EnvironmentSetupError
from deploy.files import built_folder, locked
from deploy.packing.wheel_tree import WheelName
from deploy.programs import run

_NEWEST_GLIBC = 35  # 2.35: Triton's wheel needs it too
_REMEDY = "check network, disk and pip's settings (pip config list), then repeat the command"
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def wheels_folder(cache: Path, lock: Lock) -> Path:
    """Return where the wheels of ``lock`` lie in the kit's cache folder."""
    return cache / "wheels" / lock.digest[:16]


def locked_wheels(lock: Lock, cache: Path, given: Path | None, say: Say) -> list[Path]:
    """Return the wheels of ``lock``, downloaded if they are not in the cache.

    Args:
        lock: The lock.
        cache: The kit's cache folder.
        given: A folder with wheels; then nothing is asked of the network.
        say: Is told what happens.

    Raises:
        EnvironmentSetupError: With pip's reason if a wheel cannot be had.
    """
    folder = wheels_folder(cache, lock)
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            with built_folder(folder) as partial:
                _download(lock, partial, given, say)
                _check_complete(lock, partial)
    return sorted(folder.glob("*.whl"))


def build_serving_wheel(source: Path, folder: Path) -> Path:
    """Build the ``numl_serving`` wheel.

    Args:
        source: Its distribution (``envs/numl``).
        folder: Where the wheel goes.

    Raises:
        EnvironmentSetupError: With pip's reason if it cannot be built.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Built from a copy: setuptools leaves build folders beside what it builds.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        copy = Path(scratch) / "numl"
        ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
        shutil.copytree(source, copy, ignore=ignored)
        command = [*_PIP, "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
        command += ["--wheel-dir", str(folder), str(copy)]
        _run(command, "pip cannot build numl_serving", folder)
    return next(folder.glob("numl_serving-*.whl"))


def _download(lock: Lock, folder: Path, given: Path | None, say: Say) -> None:
    command = [*_PIP, "download", "--no-deps", "--progress-bar=off", "--dest", str(folder)]
    command += _target(lock.python)
    if given is not None:
        # Isolated: a folder of wheels in this host's pip settings would be looked into as well.
        command += ["--isolated", "--no-index", "--find-links", str(given.resolve())]
    remedy = _REMEDY if given is None else f"put the locked wheels into {given}"
    torch = [*command, "--requirement", str(lock.torch)]
    say(f"torch {lock.versions['torch']}")
    try:
        _run(torch, "pip cannot get torch", folder, say, remedy)
    except EnvironmentSetupError:
        if given is not None or not lock.versions["torch"].endswith("+cpu"):
            raise
        # The wheel is not where pip looks by default: ask PyTorch's own index for it.
        say(f"torch from {TORCH_CPU_INDEX}")
        _run([*torch, "--index-url", TORCH_CPU_INDEX], "pip cannot get torch", folder, say)
    say(f"{len(lock.versions) - 1} packages")
    packages = [*command, "--require-hashes", "--requirement", str(lock.packages)]
    _run(packages, "pip cannot get the locked packages", folder, say, remedy)


def _target(python: str) -> Iterator[str]:
    """Yield pip's options for the environment's Python, whichever runs the kit."""
    yield "--only-binary=:all:"
    yield from ("--implementation=cp", f"--python-version={python}")
    yield from (f"--abi={abi}" for abi in (f"cp{python.replace('.', '')}", "abi3", "none"))
    for minor in range(_NEWEST_GLIBC, 4, -1):
        yield f"--platform=manylinux_2_{minor}_x86_64"
    yield from (f"--platform=manylinux{year}_x86_64" for year in (2014, 2010, 1))
    yield "--platform=linux_x86_64"


def _check_complete(lock: Lock, folder: Path) -> None:
    there = {WheelName.of(wheel).distribution for wheel in folder.glob("*.whl")}
    missing = {name.replace("_", "-").replace(".", "-") for name in lock.versions} - there
    if missing:
        raise EnvironmentSetupError(f"pip has not downloaded {', '.join(sorted(missing))}")


def _run(
    command: Sequence[str],
    failed: str,
    scratch: Path,
    say: Say | None = None,
    remedy: str = _REMEDY,
) -> None:
    """Run pip; raise with its conclusion if it fails.

    Args:
        command: Its command line.
        failed: What it means if it fails.
        scratch: Where it works, in a folder that goes: ended early, pip leaves what it has there.
        say: Is told what it downloads.
        remedy: What to do if it fails.
    """

    def tell(line: str) -> None:
        if say is not None and line.lstrip().startswith("Downloading "):
            say(line.strip())

    with tempfile.TemporaryDirectory(dir=scratch, prefix=".pip-") as folder:
        variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        run(
            command,
            failed=failed,
            remedy=remedy,
            environment=variables | {"TMPDIR": folder},
            explain=_conclusion,
            line=tell,
            error=EnvironmentSetupError,
        )


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
