"""Writing files so that no reader ever sees half of one."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_OPENING_ATTEMPTS = 100


def write_atomically(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write ``text`` under a temporary name in the same folder, then rename it to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def work_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside ``target`` to work in, which is removed in the end.

    What an interrupted earlier build of the same target left behind is removed first;
    callers hold :func:`locked` on the target, so no live build is disturbed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for stale in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        remove_folder(stale)
    folder = tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".partial")
    try:
        yield Path(folder)
    finally:
        remove_folder(Path(folder))


@contextmanager
def built_folder(target: Path) -> Iterator[Path]:
    """Yield a :func:`work_folder` that becomes ``target`` if the block succeeds."""
    with work_folder(target) as partial:
        partial.chmod(0o755)
        yield partial
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)


def remove_folder(folder: Path) -> None:
    """Remove ``folder`` and all in it, as far as this user may."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        return
    # The tree of an image may have folders that are closed to their owner.
    for parent, names, _ in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(path: Path, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (made if absent) for the length of the block.

    Whoever holds it may remove the file: those who wait then take turns at a new one.

    Args:
        path: The lock file; its time tells when it was last taken.
        waiting: Is called once if somebody else holds it.
    """
    while True:
        with _open_lock(path) as stream:
            if waiting is not None and not _lock_at_once(stream):
                waiting()
                waiting = None
            fcntl.flock(stream, fcntl.LOCK_EX)
            if _is_at(path, stream):
                os.utime(stream.fileno())
                yield
                return


@contextmanager
def unless_locked(path: Path) -> Iterator[bool]:
    """Hold a lock as :func:`locked` does, if nobody else does; yield whether it is held."""
    while True:
        with _open_lock(path) as stream:
            held = _lock_at_once(stream)
            if not held or _is_at(path, stream):
                yield held
                return


def _open_lock(path: Path) -> IO[str]:
    # Its last holder may remove the folder between any two of these steps.
    for _ in range(_OPENING_ATTEMPTS):
        with suppress(FileNotFoundError, FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("a")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a")


def _is_at(path: Path, stream: IO[str]) -> bool:
    """Return whether the opened file is the one at ``path``, which others would open."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _lock_at_once(opened: IO[str] | int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def scratch_folder(prefix: str, *, lock: Path) -> Iterator[Path]:
    """Yield a new folder in the system's temporary one (TMPDIR); it is removed in the end.

    What killed processes of this user have left there under the same prefix goes first: a
    folder in use is locked by the process that uses it, and no lock outlives its process.

    Args:
        prefix: How its name begins.
        lock: A lock file that everybody who uses the prefix names.
    """
    with locked(lock):
        for stale in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            _remove_unused(stale)
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        use = os.open(folder, os.O_RDONLY)
        fcntl.flock(use, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        remove_folder(folder)
        os.close(use)


def _remove_unused(folder: Path) -> None:
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if os.fstat(opened).st_uid == os.geteuid() and _lock_at_once(opened):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(opened)


def digest_of(paths: Iterable[Path], *, base: Path) -> str:
    """Return the sha256 over names (relative to ``base``) and contents of ``paths``."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(f"{path.relative_to(base).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file of any size."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def size_of(folder: Path) -> int:
    """Return the bytes that the regular files below ``folder`` hold."""
    return sum(f.lstat().st_size for f in folder.rglob("*") if f.is_file() and not f.is_symlink())
