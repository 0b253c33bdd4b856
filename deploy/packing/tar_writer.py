"""What conda-pack selects from a prefix, as a tar archive that is the same every time.

conda-pack decides which files go in and puts the new prefix into them; its own writer
would keep this host's times, owners and modes, and whatever order the disk has.
"""

from __future__ import annotations

import io
import os
import tarfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import IO, cast

from conda_pack import CondaEnv, CondaPackException
from conda_pack.core import File, Packer
from conda_pack.formats import ArchiveBase

from deploy.errors import BuildError


def write_tar(
    stream: IO[bytes] | io.RawIOBase,
    prefix: Path,
    *,
    root: str,
    destination: str | None,
    epoch: int,
    wanted: Callable[[str], bool],
    scripts: bool,
) -> None:
    """Write files of a conda prefix to ``stream``.

    Args:
        stream: Where the archive goes.
        prefix: The prefix.
        root: Folder inside the archive, without a leading slash; may be empty.
        destination: The prefix after unpacking, if it is known: it is written into the
            files that name it. Otherwise the archive has a ``conda-unpack`` that does.
        epoch: Time of every member, in seconds since 1970.
        wanted: Tells of a path below the prefix whether it goes in.
        scripts: Whether conda-pack's ``activate`` goes in.

    Raises:
        BuildError: With conda-pack's reason.
    """
    try:
        with warnings.catch_warnings():
            # Without the unpacked packages it would guess which files name the prefix.
            warnings.simplefilter("error")
            files = CondaEnv.from_prefix(str(prefix)).files
    except (CondaPackException, UserWarning) as error:
        reason = " ".join(str(error).split())
        raise BuildError(f"conda-pack cannot pack {prefix}: {reason}", f"rm -r {prefix}") from None
    archive = _Archive(stream, root=root, epoch=epoch)
    packer = Packer(str(prefix), archive, destination)
    for file in sorted(_selected(files, wanted), key=lambda file: str(file.target)):
        packer.add(file)
    if scripts:
        packer.finish()
    archive.close()


def _selected(files: Iterable[File], wanted: Callable[[str], bool]) -> Iterable[File]:
    # py-rattler marks the folder for backup programs.
    return (file for file in files if file.target != "CACHEDIR.TAG" and wanted(file.target))


class _Archive(ArchiveBase):  # type: ignore[misc]
    """conda-pack's view of an archive."""

    def __init__(self, stream: IO[bytes] | io.RawIOBase, *, root: str, epoch: int) -> None:
        self.arcroot = root
        self._epoch = epoch
        # Not "w|": given up half-way it would write what it has in a buffer of its own when
        # it is collected, to a stream that is closed.
        self._tar = tarfile.open(  # noqa: SIM115
            fileobj=cast(IO[bytes], stream), mode="w", format=tarfile.GNU_FORMAT
        )
        self._folders: set[PurePosixPath] = {PurePosixPath()}

    def _add(self, source: str, target: str) -> None:
        status = os.lstat(source)
        member = self._member(target)
        if os.path.islink(source):  # noqa: PTH114
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(source)  # noqa: PTH115
            member.mode = 0o777
            self._tar.addfile(member)
        elif os.path.isdir(source):  # noqa: PTH112
            self._add_folder(PurePosixPath(target))
        else:
            member.size = status.st_size
            member.mode = _mode(status.st_mode)
            with open(source, "rb") as content:  # noqa: PTH123
                self._tar.addfile(member, content)

    def _add_bytes(self, source: str, content: bytes, target: str) -> None:
        member = self._member(target)
        member.size = len(content)
        member.mode = _mode(os.lstat(source).st_mode)
        self._tar.addfile(member, io.BytesIO(content))

    def _member(self, target: str) -> tarfile.TarInfo:
        self._add_folder(PurePosixPath(target).parent)
        member = tarfile.TarInfo(target)
        member.mtime = self._epoch
        return member

    def _add_folder(self, folder: PurePosixPath) -> None:
        if folder in self._folders:
            return
        self._add_folder(folder.parent)
        self._folders.add(folder)
        member = tarfile.TarInfo(str(folder))
        member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, self._epoch
        self._tar.addfile(member)

    def close(self) -> None:
        self._tar.close()


def _mode(mode: int) -> int:
    """Return a mode that lets everybody read."""
    return 0o755 if mode & 0o100 else 0o644
