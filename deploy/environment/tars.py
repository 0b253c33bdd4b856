"""Tar archives whose bytes depend only on the names, modes and contents of their files."""

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

# The time of everything in an image, the earliest that a zip archive can hold: a layer with the
# same content has the same digest, whichever commit it was built from.
CONTENT_EPOCH = 315532800  # 1980-01-01

_CHUNK = 1 << 20
_END = bytes(2 * tarfile.BLOCKSIZE)


def tar_chunks(
    folder: Path,
    *,
    root: str = "",
    epoch: int = CONTENT_EPOCH,
    wanted: Callable[[str], bool] = lambda _path: True,
) -> Iterator[bytes]:
    """Yield a tar archive of ``folder``, as ``root``: sorted, owner 0:0, readable by everyone.

    Args:
        epoch: The time of everything in it (Unix, s).
        wanted: Whether a path below ``folder`` goes into it, with the folders above it.
    """
    place = PurePosixPath(root)
    written = {PurePosixPath()}
    for path in sorted(folder.rglob("*")):
        below = path.relative_to(folder)
        if not wanted(below.as_posix()):
            continue
        name, is_folder = place / below, path.is_dir() and not path.is_symlink()
        for parent in reversed([name, *name.parents] if is_folder else name.parents):
            if parent not in written:
                written.add(parent)
                yield _header(str(parent), tarfile.DIRTYPE, 0o755, epoch)
        if not is_folder:
            yield from _file(path, str(name), epoch)
    yield _END


def write_tar(
    folder: Path, out: Path, *, root: str, wanted: Callable[[str], bool] = lambda _path: True
) -> None:
    with out.open("wb") as stream:
        stream.writelines(tar_chunks(folder, root=root, wanted=wanted))


def _file(path: Path, name: str, epoch: int) -> Iterator[bytes]:
    if path.is_symlink():
        yield _header(name, tarfile.SYMTYPE, 0o777, epoch, link=str(path.readlink()))
        return
    facts = path.stat()
    mode = 0o755 if facts.st_mode & 0o100 else 0o644
    yield _header(name, tarfile.REGTYPE, mode, epoch, size=facts.st_size)
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
    yield bytes(-facts.st_size % tarfile.BLOCKSIZE)


def _header(
    name: str, kind: bytes, mode: int, epoch: int, *, size: int = 0, link: str = ""
) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime, info.size, info.linkname = kind, mode, epoch, size, link
    return info.tobuf(tarfile.GNU_FORMAT)
