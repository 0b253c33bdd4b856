"""Free space on this host's disks and in its memory, checked before anything is written."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.host.errors import BuildError

_GB = 1e9
_MB = 1e6


@dataclass(frozen=True)
class Room:
    """Disk space that will be used, in a folder that need not exist yet.

    ``setting`` says how to choose another one. If not ``ours``, the Docker engine writes there.
    """

    folder: Path
    bytes: int
    purpose: str
    setting: str
    ours: bool = True


@dataclass(frozen=True)
class FileSystem:
    """A file system, and the bytes free for an ordinary user."""

    device: int
    free: int


def file_system_of(folder: Path) -> FileSystem:
    """Return the file system that ``folder`` is on, or will be on once it is made."""
    existing = _existing(folder)
    return FileSystem(device=existing.stat().st_dev, free=shutil.disk_usage(existing).free)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_temporary_folder(variable: str = "TMPDIR") -> Path:
    """Return the folder for temporary files; BuildError if the one in ``variable`` is unusable."""
    named = os.environ.get(variable)
    if not named:
        return Path(tempfile.gettempdir())
    if not os.access(Path(named, "."), os.W_OK | os.X_OK):
        cause = f"{variable}={named} is not a folder that can be written to"
        raise BuildError(cause, f"set {variable}")
    return Path(named).absolute()


def check_writable(needs: Sequence[Room]) -> None:
    for need in needs:
        existing = _existing(need.folder)
        cause = f"cannot put {need.purpose} there"
        if not existing.is_dir():
            raise BuildError(f"{existing} is not a folder: {cause}", need.setting)
        if need.ours and not os.access(existing, os.W_OK | os.X_OK):
            raise BuildError(f"{existing} cannot be written to: {cause}", need.setting)


@dataclass(frozen=True)
class Demand:
    """What will be written to one file system, and the bytes free on it."""

    rooms: tuple[Room, ...]
    free: int

    @property
    def bytes(self) -> int:
        return sum(room.bytes for room in self.rooms)

    def error(self) -> BuildError:
        parts = ", ".join(f"{size(r.bytes)} in {r.folder} for {r.purpose}" for r in self.rooms)
        settings = dict.fromkeys(room.setting for room in self.rooms)
        return BuildError(
            f"not enough disk space: {size(self.bytes)} needed ({parts}), {size(self.free)} free",
            f"free space there, or use a larger disk: {'; '.join(settings)}",
        )


def by_file_system(rooms: Sequence[Room]) -> list[Demand]:
    found = [(room, file_system_of(room.folder)) for room in rooms]
    free = {there.device: there.free for _room, there in found}
    return [
        Demand(tuple(room for room, there in found if there.device == device), free[device])
        for device in free
    ]


def check_room(needs: Sequence[Room]) -> None:
    """Check that every file system has room for everything that will be written to it."""
    for demand in by_file_system(needs):
        if demand.bytes > demand.free:
            raise demand.error()


def size(count: int) -> str:
    return f"{count / _GB:.1f} GB" if count >= _GB else f"{count / _MB:.0f} MB"


def check_memory(wanted: int) -> None:
    available = psutil.virtual_memory().available
    if wanted > available:
        raise BuildError(
            f"not enough memory: {wanted / _GB:.1f} GB needed, {available / _GB:.1f} GB available",
            "stop other programs, or build on a larger machine",
        )
