"""Files and folders that appear complete or not at all, and locks."""

import errno
import fcntl
import glob
import hashlib
import io
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, cast

from deploy.host.errors import KitError, RepositoryError

_OPENING_ATTEMPTS = 100
# AFS has no hard links between folders, CIFS, exFAT and some of FUSE have none at all.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
# Marks what the kit has not finished: nothing without this name is ever removed as left behind.
_MARK, _UNFINISHED = ".numlkit.", ".partial"
_PARTIAL = re.compile(r"\.numlkit\..+\.[a-z0-9_]{8}\.partial")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write ``content`` under a temporary name in the same folder, then rename it to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"{_MARK}{path.name}."
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=_UNFINISHED)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def work_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside ``target`` to work in; it is removed at the end.

    What interrupted builds of ``target`` left is removed first: callers hold a lock on it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"{_MARK}{target.name}."
    for stale in partials(target.parent, f"{glob.escape(prefix)}????????{_UNFINISHED}"):
        remove_folder(stale)
    folder = tempfile.mkdtemp(dir=target.parent, prefix=prefix, suffix=_UNFINISHED)
    try:
        yield Path(folder)
    finally:
        remove_folder(Path(folder))


def partials(folder: Path, pattern: str = f"{_MARK}*{_UNFINISHED}") -> tuple[Path, ...]:
    """Return what this user's commands have not finished in ``folder``, or still work on."""
    found = []
    for path in sorted(folder.glob(pattern)):
        with suppress(FileNotFoundError):
            own = path.lstat().st_uid == os.getuid() and not path.is_symlink()
            if own and _PARTIAL.fullmatch(path.name):
                found.append(path)
    return tuple(found)


@contextmanager
def built_folder(target: Path) -> Iterator[Path]:
    """Yield a :func:`work_folder` that becomes ``target`` if the block succeeds."""
    with work_folder(target) as partial:
        partial.chmod(0o755)
        yield partial
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)


def link_or_copy(source: str, target: str) -> None:
    """Make ``target`` a hard link to ``source``, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        shutil.copy2(source, target)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a :func:`work_folder` that becomes ``target`` if the block succeeds.

    Raises:
        RepositoryError: Something is there by then, or another command is making it.
    """
    lock = target.with_name(f"{_MARK}{target.name}.lock")
    with unless_locked(lock) as free:
        if not free:
            cause = f"another command is making {target}"
            raise RepositoryError(cause, "wait for it, or choose another name")
        try:
            with work_folder(target) as partial:
                partial.chmod(0o755)
                yield partial
                refuse_existing(target)
                partial.rename(target)
        finally:
            lock.unlink(missing_ok=True)


def refuse_existing(target: Path) -> None:
    """Raise RepositoryError if something is there."""
    if target.exists():
        raise RepositoryError(f"{target} is there already", "choose another name")


@contextmanager
def naming(folder: Path) -> Iterator[None]:
    """Have the error of a full disk name ``folder`` where the system names no file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(folder)
        raise


def remove_folder(folder: Path) -> None:
    """Remove everything in ``folder`` that this user can remove, and the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        return
    # An image's tree may have folders that their owner may not enter.
    for parent, names, _ in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(path: Path, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Lock ``path`` exclusively for the block, and touch it; ``waiting`` is called if we must wait.

    The holder may remove the file: waiters then lock a new one.
    """
    while True:
        with _open_lock(path) as stream:
            if waiting is not None and not _lock_at_once(stream):
                waiting()
                waiting = None
            _lock(stream, fcntl.LOCK_EX)
            if _is_at(path, stream):
                os.utime(stream.fileno())
                yield
                return


@contextmanager
def unless_locked(path: Path) -> Iterator[bool]:
    """Lock like :func:`locked`, without waiting; yield whether we hold the lock."""
    while True:
        with _open_lock(path) as stream:
            held = _lock_at_once(stream)
            if not held or _is_at(path, stream):
                yield held
                return


@contextmanager
def nobody_at_work(locks: Iterable[Path]) -> Iterator[None]:
    """Hold all ``locks`` for the block; KitError, without waiting, if one is held already."""
    with ExitStack() as stack:
        for lock in locks:
            if not stack.enter_context(unless_locked(lock)):
                raise KitError(f"another command is at work in {lock.parent}")
        yield


def _open_lock(path: Path) -> IO[str]:
    # Its last holder may remove the folder between any two of these calls.
    for _ in range(_OPENING_ATTEMPTS):
        with suppress(FileNotFoundError, FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("a")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a")


def _is_at(path: Path, stream: IO[str]) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _lock_at_once(opened: IO[str]) -> bool:
    try:
        _lock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock(opened: IO[str], how: int) -> None:
    try:
        fcntl.flock(opened, how)
    except OSError as error:  # which has no name; network file systems may have no locks
        raise OSError(error.errno, f"cannot be locked: {error.strerror}", opened.name) from error


def read_most(path: Path, most: int) -> bytes:
    """Return what a file holds, up to ``most`` bytes. Others may have put anything at ``path``.

    Raises:
        OSError: It cannot be read, or is not a regular file: a pipe or a device may never end.
    """
    # A pipe that nobody writes to would not even be opened.
    file = io.FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    with io.BufferedReader(file) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a file", str(path))
        return stream.read(most)


def digest_of(paths: Iterable[Path], *, base: Path) -> str:
    """Return the sha256 over names (relative to ``base``) and contents of ``paths``."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(f"{path.relative_to(base).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def marks_of(path: Path) -> str:
    """Return path, size and modification time, which tell whether a file has changed."""
    facts = path.stat()
    return f"{path} {facts.st_size} {facts.st_mtime_ns}"


def sha256_of(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def size_of(folder: Path) -> int:
    return sum(f.lstat().st_size for f in folder.rglob("*") if f.is_file() and not f.is_symlink())


def as_stream(chunks: Iterator[bytes]) -> IO[bytes]:
    """Return chunks as what ``tarfile`` reads in its mode ``r|``."""
    return cast(IO[bytes], SimpleNamespace(read=lambda _size: next(chunks, b"")))
