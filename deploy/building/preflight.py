"""Before a long step: is there room for it? Answered in less than a second."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.errors import BuildError

_GB = 1e9


@dataclass(frozen=True)
class Room:
    """Disk that a step will use.

    Attributes:
        folder: Where; it need not be there yet.
        bytes: How much.
        purpose: What for, as in ``the image's layers``.
        setting: How to choose another folder, as in ``set TMPDIR``.
        ours: Whether this process writes there; else the Docker engine does.
    """

    folder: Path
    bytes: int
    purpose: str
    setting: str
    ours: bool = True


@dataclass(frozen=True)
class FileSystem:
    """A file system with the room left on it.

    Attributes:
        device: Tells it from others.
        free: Bytes that an ordinary user may still write.
    """

    device: int
    free: int


def file_system_of(folder: Path) -> FileSystem:
    """Return the file system that ``folder`` is on, or will be on when it is made."""
    there = _there(folder)
    return FileSystem(device=there.stat().st_dev, free=shutil.disk_usage(there).free)


def _there(folder: Path) -> Path:
    """Return the folder itself, or the innermost one around it that there is."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_temporary_folder() -> Path:
    """Return the folder for temporary files; if TMPDIR names one, it must be usable.

    Python would quietly take another, and the programs that it starts would not.

    Raises:
        BuildError: If it is not.
    """
    named = os.environ.get("TMPDIR")
    if not named:
        return Path(tempfile.gettempdir())
    if not os.access(Path(named, "."), os.W_OK | os.X_OK):
        raise BuildError(f"TMPDIR={named} is not a folder that can be written to", "set TMPDIR")
    return Path(named).absolute()


def check_writable(needs: Sequence[Room]) -> None:
    """Check that every folder can be written to, or made.

    Args:
        needs: What the steps will use.

    Raises:
        BuildError: Naming the folder, and how to choose another.
    """
    for need in needs:
        there = _there(need.folder)
        if not there.is_dir():
            raise BuildError(f"{there} is not a folder: no place for {need.purpose}", need.setting)
        if need.ours and not os.access(there, os.W_OK | os.X_OK):
            raise BuildError(f"{there} cannot be written to: no place for {need.purpose}",
                             need.setting)  # fmt: skip


def check_room(needs: Sequence[Room], look: Callable[[Path], FileSystem] = file_system_of) -> None:
    """Check that every file system has room for all that will be written to it.

    Args:
        needs: What the steps will use; those on one file system are added up.
        look: Finds a folder's file system.

    Raises:
        BuildError: Naming what is needed, for what, and what there is.
    """
    together: dict[int, list[Room]] = {}
    free: dict[int, int] = {}
    for need in needs:
        found = look(need.folder)
        together.setdefault(found.device, []).append(need)
        free[found.device] = found.free
    for device, group in together.items():
        wanted = sum(need.bytes for need in group)
        if wanted > free[device]:
            parts = ", ".join(
                f"{need.bytes / _GB:.1f} GB in {need.folder} for {need.purpose}" for need in group
            )
            settings = dict.fromkeys(need.setting for need in group)
            raise BuildError(
                f"disk too small: {wanted / _GB:.1f} GB needed ({parts}), "
                f"{free[device] / _GB:.1f} GB free",
                f"free space there, or use a larger disk: {'; '.join(settings)}",
            )


def check_memory(wanted: int, available: int | None = None) -> None:
    """Check that ``wanted`` bytes of memory are available.

    Args:
        wanted: Bytes that the build will use at once.
        available: Bytes that there are; None: ask the system.

    Raises:
        BuildError: Naming what is needed and what there is.
    """
    if available is None:
        available = psutil.virtual_memory().available
    if wanted > available:
        raise BuildError(
            f"memory too small: {wanted / _GB:.1f} GB needed, {available / _GB:.1f} GB available",
            "end other programs, or build on a larger machine",
        )
