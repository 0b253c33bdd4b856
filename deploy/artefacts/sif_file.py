"""A .sif file whose bytes depend on the names, modes and contents of its files alone.

In its squashfs all files have one time and belong to root. ``/dev`` is empty: Apptainer mounts
one, and only root could make devices. There are no extended attributes: they are this host's
(SELinux), and Apptainer's mounts ignore file capabilities.

``apptainer sif`` writes the file around it, with a random id, the current time and this user's
ids, and without the line that makes it a program; no option changes that (1.4.5), so these fields
are set afterwards. Their offsets are those of https://github.com/apptainer/sif, package ``sif``.
"""

import os
import struct
import tarfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from deploy.host.errors import BuildError
from deploy.host.files import as_stream, sha256_of
from deploy.host.programs import run

Compressor = Literal["zstd", "gzip"]

# Smaller files than apptainer build makes (gzip, level 9, 128 KiB), in a fraction of the time;
# larger blocks would make files slower to read.
LEVELS: dict[Compressor, int] = {"zstd": 2, "gzip": 6}
BLOCK_KIB = 256

_CHUNK = 1 << 20
_FAILED = "Apptainer cannot write the .sif"
FULL_DISK = "check the free space of the output's disk, then run the command again"

_LAUNCH_LINE = b"#!/usr/bin/env run-singularity\n"
# The global header: launch line at 0, UUID at 48, times of creation and change behind it,
# number and offset of the descriptors at 88.
_UUID_AND_TIMES, _UUID = struct.Struct("<16sqq"), 48
_DESCRIPTORS = struct.Struct("<qq")
# A descriptor: whether it is used at 4; times of creation and change, user and group at 41.
_DESCRIPTOR_BYTES = 585
_TIMES_AND_IDS = struct.Struct("<qqqq")

_DEFINITION, _PARTITION, _JSON = "1", "4", "6"
_ROOT_SQUASHFS = ("--parttype", "2", "--partfs", "1", "--partarch", "2")  # amd64


def options(compressor: Compressor, *, epoch: int) -> list[str]:
    words = ["-noappend", "-no-progress", "-quiet", "-no-xattrs", "-no-exports", "-all-root"]
    words += ["-mkfs-time", str(epoch), "-all-time", str(epoch), "-b", f"{BLOCK_KIB}K"]
    return [*words, "-comp", compressor, "-Xcompression-level", str(LEVELS[compressor])]


def variables() -> dict[str, str]:
    """Return the environment of ``mksquashfs``, which refuses two sources of the time."""
    return {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}


def squash(
    mksquashfs: Path, files: Path | Iterable[bytes], out: Path, compressor: Compressor, epoch: int
) -> None:
    """Write the files of a folder or of a tar, whose first entry of a name counts, as a squashfs.

    ``epoch`` is the time of every file (Unix, s).
    """
    source: str | Path = "-"
    tar: Iterable[bytes] = ()
    if isinstance(files, Path):
        source, words = files, ["-wildcards", "-e", "dev/*"]
    else:
        tar, words = files, ["-tar", "-root-mode", "755"]
    run(
        [mksquashfs, source, out, *options(compressor, epoch=epoch), *words],
        failed="cannot write the .sif's file system",
        remedy=FULL_DISK,
        environment=variables(),
        stdin=tar,
    )


def fit(exported: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the tar that Docker exports, without its end blocks, as ``mksquashfs`` understands it.

    Long names are written in GNU's way: of absolute links in pax headers mksquashfs drops the
    leading slash (seen in 4.5.1). Devices and ``/.dockerenv``, Docker's mark, are left out.
    """
    try:
        with tarfile.open(fileobj=as_stream(exported), mode="r|", bufsize=_CHUNK) as tar:
            for member in tar:
                if member.name == ".dockerenv" or member.name.startswith("dev/"):
                    continue
                yield member.tobuf(tarfile.GNU_FORMAT)
                if member.isreg() and (content := tar.extractfile(member)) is not None:
                    while chunk := content.read(_CHUNK):
                        yield chunk
                    yield bytes(-member.size % tarfile.BLOCKSIZE)
    except tarfile.TarError as error:
        raise BuildError(f"the Docker engine's export of the image ended early: {error}") from None


class Records(NamedTuple):
    """What a .sif holds besides its file system: the definition, and JSON documents by name."""

    definition: str
    documents: dict[str, str]


def write_sif(apptainer: Path, squashfs: Path, records: Records, out: Path, *, epoch: int) -> None:
    """Write ``out``, whose bytes depend on the squashfs, the records and ``epoch`` alone."""
    run([apptainer, "sif", "new", out], failed=_FAILED, remedy=FULL_DISK)
    texts = [(_DEFINITION, "", records.definition)]
    texts += [(_JSON, name, text) for name, text in records.documents.items()]
    for datatype, name, text in texts:
        file = out.with_name("record")
        file.write_text(text, encoding="utf-8")
        _add(apptainer, out, file, datatype, "--filename", name)
    _add(apptainer, out, squashfs, _PARTITION, *_ROOT_SQUASHFS, "--filename", "")
    with out.open("r+b") as stream:
        header = bytearray(stream.read(1 << 16))
        fix(header, epoch=epoch)
        stream.seek(0)
        stream.write(header)
        stream.flush()
        digest = bytes.fromhex(sha256_of(out))
        stream.seek(_UUID)
        stream.write(uuid.UUID(bytes=digest[:16], version=5).bytes)
    out.chmod(0o755)


def fix(header: bytearray, *, epoch: int) -> None:
    """Set what Apptainer randomises or omits, in a file's bytes up to its descriptors.

    ``epoch`` is its time (Unix, s).
    """
    header[:32] = _LAUNCH_LINE.ljust(32, b"\0")
    _UUID_AND_TIMES.pack_into(header, _UUID, bytes(16), epoch, epoch)
    count, first = _DESCRIPTORS.unpack_from(header, 88)
    for start in range(first, first + count * _DESCRIPTOR_BYTES, _DESCRIPTOR_BYTES):
        if header[start + 4]:
            _TIMES_AND_IDS.pack_into(header, start + 41, epoch, epoch, 0, 0)


def _add(apptainer: Path, sif: Path, part: Path, datatype: str, *words: str) -> None:
    arguments = ("--datatype", datatype, "--groupid", "1", *words)
    run([apptainer, "sif", "add", *arguments, sif, part], failed=_FAILED, remedy=FULL_DISK)
