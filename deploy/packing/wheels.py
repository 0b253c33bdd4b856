"""The wheels that a lock names: in the cache, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from deploy.console import Say
from deploy.environment.lock import Lock
from deploy.environment.pip import PIP, get_locked
from deploy.errors import EnvironmentSetupError
from deploy.files import built_folder, locked
from deploy.packing.wheel_tree import WheelName

_NEWEST_GLIBC = 35  # 2.35: Triton's wheel needs it too


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


def _download(lock: Lock, folder: Path, given: Path | None, say: Say) -> None:
    command = [*PIP, "download", "--no-deps", "--progress-bar=off", "--dest", str(folder)]
    command += _target(lock.python)
    if given is not None:
        # Isolated: a folder of wheels in this host's pip settings would be looked into as well.
        command += ["--isolated", "--no-index", "--find-links", str(given.resolve())]
    get_locked(command, lock, "get", scratch=folder, say=say, given=given)


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
