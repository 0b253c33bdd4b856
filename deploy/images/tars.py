"""Tar archives that depend on nothing but the names, modes and contents of the files in them."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

# Everything in an image bears this time, the earliest that a zip archive knows: a layer
# whose content is the same has the same digest, whichever commit it was built from.
CONTENT_EPOCH = 315532800  # 1980-01-01

_CHUNK = 1 << 20


def tar_chunks(folder: Path, *, root: str = "") -> Iterator[bytes]:
    """Yield a tar archive of ``folder``: names sorted, owner 0:0, readable for all.

    Args:
        folder: What goes in.
        root: Where it lies in the archive, as in ``opt/tritonserver``.
    """
    parents = [Path(root), *Path(root).parents] if root else []
    for parent in reversed(parents[:-1]):
        yield _header(_describe(parent.as_posix(), tarfile.DIRTYPE, 0o755))
    for path in sorted(folder.rglob("*")):
        name = (Path(root) / path.relative_to(folder)).as_posix()
        if path.is_symlink():
            info = _describe(name, tarfile.SYMTYPE, 0o777)
            info.linkname = str(path.readlink())
            yield _header(info)
        elif path.is_dir():
            yield _header(_describe(name, tarfile.DIRTYPE, 0o755))
        else:
            facts = path.stat()
            info = _describe(name, tarfile.REGTYPE, 0o755 if facts.st_mode & 0o100 else 0o644)
            info.size = facts.st_size
            yield _header(info)
            with path.open("rb") as stream:
                while chunk := stream.read(_CHUNK):
                    yield chunk
            yield b"\0" * (-info.size % tarfile.BLOCKSIZE)
    yield b"\0" * 2 * tarfile.BLOCKSIZE


def write_tar(folder: Path, out: Path, *, root: str) -> None:
    """Write :func:`tar_chunks` of ``folder`` to ``out``."""
    with out.open("wb") as stream:
        for chunk in tar_chunks(folder, root=root):
            stream.write(chunk)


def _describe(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = kind, mode, CONTENT_EPOCH
    return info


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.GNU_FORMAT)
