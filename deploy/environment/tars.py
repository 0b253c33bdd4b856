"""Tar archives whose bytes depend only on the names, modes and contents of their files."""

import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from io import IOBase
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import IO

from conda_pack import CondaEnv, CondaPackException
from conda_pack.core import Packer
from conda_pack.formats import ArchiveBase

from deploy.host.command_line import quote
from deploy.host.errors import BuildError

# The time of everything in an image, the earliest that a zip archive can hold: a layer with the
# same content has the same digest, whichever commit it was built from.
CONTENT_EPOCH = 315532800  # 1980-01-01

_CHUNK = 1 << 20
_END = bytes(2 * tarfile.BLOCKSIZE)


def tar_chunks(folder: Path, *, root: str = "") -> Iterator[bytes]:
    """Yield a tar archive of ``folder``, as ``root``: sorted, owner 0:0, readable by everyone."""
    place = PurePosixPath(root)
    for parent in reversed([place, *place.parents][:-1]):
        yield _folder(str(parent), CONTENT_EPOCH)
    for path in sorted(folder.rglob("*")):
        name = str(place / path.relative_to(folder))
        if path.is_dir() and not path.is_symlink():
            yield _folder(name, CONTENT_EPOCH)
        else:
            yield from _file(path, name, CONTENT_EPOCH)
    yield _END


def write_tar(folder: Path, out: Path, *, root: str) -> None:
    with out.open("wb") as stream:
        stream.writelines(tar_chunks(folder, root=root))


def write_prefix(
    stream: IO[bytes] | IOBase,
    prefix: Path,
    *,
    root: str = "",
    epoch: int = CONTENT_EPOCH,
    wanted: Callable[[str], bool] = lambda _path: True,
    links: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write a conda prefix to ``stream``, with the ``activate`` that conda-pack adds.

    conda-pack chooses the files; its own writer would keep the times, owners and modes of this
    host, and the order of the disk. With a ``root``, the folder in the archive, the prefix will lie
    there, and ``conda-unpack`` is left out. Paths in ``links`` become links to what these name.
    """
    try:
        files = CondaEnv.from_prefix(str(prefix)).files
    except CondaPackException as error:
        reason = " ".join(str(error).split())
        cause = f"conda-pack cannot pack {prefix}: {reason}"
        raise BuildError(cause, f"rm -r {quote(str(prefix))}") from None
    archive = _Archive(stream, root, epoch, wanted, links)
    packer = Packer(str(prefix), archive, f"/{root}" if root else None)
    for file in sorted(files, key=lambda file: str(file.target)):
        # No file contains the prefix: there is nothing to replace when it is unpacked.
        file.file_mode = None
        packer.add(file)
    packer.finish()
    stream.write(_END)


class _Archive(ArchiveBase):  # type: ignore[misc]
    """conda-pack's view of an archive."""

    def __init__(
        self,
        stream: IO[bytes] | IOBase,
        root: str,
        epoch: int,
        wanted: Callable[[str], bool],
        links: Mapping[str, str],
    ) -> None:
        self.arcroot = root
        self._stream, self._epoch, self._wanted, self._links = stream, epoch, wanted, links
        self._folders: set[PurePosixPath] = {PurePosixPath()}

    def _add(self, source: str, target: str) -> None:
        path, name = Path(source), PurePosixPath(target)
        below = os.path.relpath(target, self.arcroot or ".")
        if not self._wanted(below):
            return
        is_folder = path.is_dir() and not path.is_symlink()
        for folder in reversed([name, *name.parents] if is_folder else name.parents):
            if folder not in self._folders:
                self._folders.add(folder)
                self._stream.write(_folder(str(folder), self._epoch))
        if below in self._links:
            self._stream.write(_link(target, self._links[below], self._epoch))
        elif not is_folder:
            for chunk in _file(path, target, self._epoch):
                self._stream.write(chunk)


def _folder(name: str, epoch: int) -> bytes:
    return _header(name, tarfile.DIRTYPE, 0o755, epoch)


def _link(name: str, target: str, epoch: int) -> bytes:
    return _header(name, tarfile.SYMTYPE, 0o777, epoch, link=target)


def _file(path: Path, name: str, epoch: int) -> Iterator[bytes]:
    if path.is_symlink():
        yield _link(name, str(path.readlink()), epoch)
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
