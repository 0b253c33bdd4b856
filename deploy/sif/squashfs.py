"""Write a squashfs: from a folder, from a tar as it comes, from the layers of an image.

The result is a function of names, modes, owners and contents alone: all times are set to
one, and ``mksquashfs`` has its threads write in a fixed order. Extended attributes are left
out: they are this host's (SELinux), and Apptainer's mounts ignore capabilities of files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.errors import BuildError
from deploy.programs import run

CompressorName = Literal["zstd", "gzip"]

_FAILED = "cannot write the .sif's file system"
_REMEDY = "check the room on the output's disk, then repeat the command"

# In a mount namespace of its own: nothing is left mounted, however the process ends.
_WITH_LAYERS = (
    "unshare",
    "--mount",
    "--propagation=private",
    "sh",
    "-c",
    'mount -t overlay overlay -o ro,lowerdir="$1" merged && shift && exec "$@"',
    "sh",
)


@dataclass(frozen=True)
class Compression:
    """How a squashfs is compressed.

    Attributes:
        name: The compressor.
        level: Its level; larger is smaller and slower.
        block: KiB that are compressed together; larger is smaller, and more to read at once.
    """

    name: CompressorName
    level: int
    block: int

    def __str__(self) -> str:
        return f"{self.name} level {self.level}, blocks of {self.block} KiB"


# Smaller than what apptainer build makes (gzip, level 9, 128 KiB), in a fraction of the time;
# larger blocks make files slower to read.
COMPRESSIONS: dict[CompressorName, Compression] = {
    "zstd": Compression("zstd", level=2, block=256),
    "gzip": Compression("gzip", level=6, block=256),
}


def options(compression: Compression, *, epoch: int, room: int) -> list[str]:
    """Return the options of ``mksquashfs`` that all ways share.

    Args:
        compression: How to compress.
        epoch: The time that all files are given, in seconds since 1970.
        room: Bytes to leave free at the beginning of the file.
    """
    words = ["-noappend", "-no-progress", "-quiet", "-no-xattrs", "-no-exports"]
    words += ["-mkfs-time", str(epoch), "-all-time", str(epoch)]
    words += ["-comp", compression.name, "-Xcompression-level", str(compression.level)]
    return [*words, "-b", f"{compression.block}K", "-offset", str(room)]


def without_epoch() -> dict[str, str]:
    """Return the environment for ``mksquashfs``, which refuses to be told the time twice."""
    return {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}


def squash_folder(mksquashfs: Path, folder: Path, out: Path, words: Sequence[str]) -> None:
    """Write the tree below ``folder``, all of it owned by root.

    Args:
        mksquashfs: The program.
        folder: The tree.
        out: The file to write.
        words: As :func:`options` gives them.

    Raises:
        BuildError: If it cannot be written.
    """
    command = [str(mksquashfs), str(folder), str(out), *words, "-all-root"]
    run(command, failed=_FAILED, remedy=_REMEDY, environment=without_epoch())


def squash_tar(
    mksquashfs: Path, tar: Iterable[bytes | memoryview], out: Path, words: Sequence[str]
) -> None:
    """Write the tree that a tar describes; of two entries of one name the first counts.

    Args:
        mksquashfs: The program, 4.5 or newer.
        tar: The archive, in pieces.
        out: The file to write.
        words: As :func:`options` gives them.

    Raises:
        BuildError: If it cannot be written.
    """
    root = ["-root-mode", "755", "-root-uid", "0", "-root-gid", "0"]
    command = [str(mksquashfs), "-", str(out), "-tar", *words, *root]
    run(command, failed=_FAILED, remedy=_REMEDY, environment=without_epoch(), stdin=tar)


def squash_layers(
    mksquashfs: Path, layers: Sequence[Path], out: Path, words: Sequence[str]
) -> None:
    """Write the tree that folders laid over each other (overlayfs) make. Needs root.

    Args:
        mksquashfs: The program.
        layers: The folders, the uppermost first.
        out: The file to write; links to the layers are made beside it.
        words: As :func:`options` gives them.

    Raises:
        BuildError: If it cannot be written.
    """
    command = ["merged", out, *words]
    _run_on_layers(layers, out.parent, [str(mksquashfs), *map(str, command)])


def can_lay_over(layers: Sequence[Path], scratch: Path) -> bool:
    """Return whether this process may mount ``layers`` over each other.

    Args:
        layers: The folders, the uppermost first.
        scratch: A folder to work in.
    """
    try:
        _run_on_layers(layers, scratch, ["true"])
    except (BuildError, FileNotFoundError):
        return False
    return True


def _run_on_layers(layers: Sequence[Path], scratch: Path, command: Sequence[str]) -> None:
    # Short names: all options of a mount have to fit into one page.
    names = [str(number) for number in range(len(layers))]
    for name, layer in zip(names, layers, strict=True):
        link = scratch / name
        link.unlink(missing_ok=True)
        link.symlink_to(layer)
    (scratch / "merged").mkdir(exist_ok=True)
    run(
        [*_WITH_LAYERS, ":".join(names), *command],
        failed=_FAILED,
        remedy=_REMEDY,
        cwd=scratch,
        environment=without_epoch(),
    )
