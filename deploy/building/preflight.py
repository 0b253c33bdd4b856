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
_MB = 1e6


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


def check_temporary_folder(variable: str = "TMPDIR") -> Path:
    """Return the folder for temporary files; if a variable names one, it must be usable.

    Python would quietly take another, and the programs that it starts would not.

    Args:
        variable: Its name.

    Raises:
        BuildError: If it is not.
    """
    named = os.environ.get(variable)
    if not named:
        return Path(tempfile.gettempdir())
    if not os.access(Path(named, "."), os.W_OK | os.X_OK):
        cause = f"{variable}={named} is not a folder that can be written to"
        raise BuildError(cause, f"set {variable}")
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


@dataclass(frozen=True)
class Demand:
    """What will be written to one file system.

    Attributes:
        rooms: What it is used for.
        free: Bytes that there are.
    """

    rooms: tuple[Room, ...]
    free: int

    @property
    def bytes(self) -> int:
        """How much is needed."""
        return sum(room.bytes for room in self.rooms)

    def error(self) -> BuildError:
        """Return what is wrong if that is more than there is."""
        parts = ", ".join(f"{size(r.bytes)} in {r.folder} for {r.purpose}" for r in self.rooms)
        settings = dict.fromkeys(room.setting for room in self.rooms)
        return BuildError(
            f"disk too small: {size(self.bytes)} needed ({parts}), {size(self.free)} free",
            f"free space there, or use a larger disk: {'; '.join(settings)}",
        )


def by_file_system(
    rooms: Sequence[Room], look: Callable[[Path], FileSystem] = file_system_of
) -> list[Demand]:
    """Return what will be written to each file system.

    Args:
        rooms: What will be used; those on one file system are added up.
        look: Finds a folder's file system.
    """
    together: dict[int, list[Room]] = {}
    free: dict[int, int] = {}
    for room in rooms:
        found = look(room.folder)
        together.setdefault(found.device, []).append(room)
        free[found.device] = found.free
    return [Demand(tuple(group), free[device]) for device, group in together.items()]


def check_room(needs: Sequence[Room], look: Callable[[Path], FileSystem] = file_system_of) -> None:
    """Check that every file system has room for all that will be written to it.

    Args:
        needs: What the steps will use; those on one file system are added up.
        look: Finds a folder's file system.

    Raises:
        BuildError: Naming what is needed, for what, and what there is.
    """
    for demand in by_file_system(needs, look):
        if demand.bytes > demand.free:
            raise demand.error()


def size(count: int) -> str:
    """Return a number of bytes as a person writes it."""
    return f"{count / _GB:.1f} GB" if count >= _GB else f"{count / _MB:.0f} MB"


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
