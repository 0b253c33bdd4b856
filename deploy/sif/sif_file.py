"""The .sif file: a header made by ``apptainer sif`` before a file system that is there already.

The squashfs, all but a few kilobytes of a .sif, is written where it stays: behind room for
the header (:data:`ROOM`). Apptainer makes the header for a stand-in of one block; the sizes
in it are then set to the real ones, and what would differ from build to build is fixed.

The layout (https://github.com/apptainer/sif, package ``sif``; little-endian) begins with

======  =====  ============================================================
offset  bytes
======  =====  ============================================================
0       32     launch line, for when the file is run as a program
32      16     magic, version, architecture
48      16     UUID
64      8      created, seconds since 1970
72      8      modified
88      8      number of descriptors
96      8      where the descriptors begin
112     8      where the parts begin
120     8      size of all parts together
======  =====  ============================================================

and each descriptor, of 585 bytes, holds

======  =====  ============================================================
offset  bytes
======  =====  ============================================================
4       1      whether it is in use
17      8      where the part begins
25      8      its size
33      8      its size with what fills the gap before it
41      8      created
49      8      modified
57      8      user id
65      8      group id
======  =====  ============================================================
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.errors import BuildError
from deploy.programs import run
from deploy.sif.tools import Tool

ROOM = 128 << 10

_LAUNCH = b"#!/usr/bin/env run-singularity\n"
_DESCRIPTOR = 585
_UUID = 48

DEFINITION = ("--datatype", "1")
JSON = ("--datatype", "6")
_FILE_SYSTEM = (
    *("--datatype", "4"),
    *("--parttype", "2"),  # the container's root
    *("--partfs", "1"),  # squashfs
    *("--partarch", "2"),  # amd64
    *("--alignment", str(ROOM)),
)


@dataclass(frozen=True)
class Record:
    """A small part of a .sif.

    Attributes:
        kind: What it is, in the options of ``apptainer sif add``.
        name: Its name inside; may be empty.
        path: The file to take.
    """

    kind: tuple[str, ...]
    name: str
    path: Path


def write_header(apptainer: Tool, sif: Path, records: Sequence[Record], *, epoch: int) -> None:
    """Make a .sif of a file that has a squashfs behind :data:`ROOM` bytes.

    Its bytes then depend on the squashfs, the records and ``epoch`` alone.

    Args:
        apptainer: The program.
        sif: The file.
        records: What goes in before the file system, in that order.
        epoch: The time it is given, in seconds since 1970.

    Raises:
        BuildError: If Apptainer cannot make the header.
    """
    model, block = sif.with_suffix(".header"), sif.with_suffix(".block")
    block.write_bytes(bytes(4096))
    failed = "Apptainer cannot write the .sif's header"
    run([apptainer.path, "sif", "new", model], failed=failed)
    for record in (*records, Record(_FILE_SYSTEM, "", block)):
        words = (*record.kind, "--groupid", "1", "--filename", record.name)
        run([apptainer.path, "sif", "add", *words, model, record.path], failed=failed)
    if model.stat().st_size != ROOM + block.stat().st_size:
        raise BuildError(
            f"{failed}: labels and environment need more than {ROOM >> 10} KiB",
            "give the image fewer or shorter labels",
        )
    with model.open("rb") as stream:
        header = bytearray(stream.read(ROOM))
    fix(header, size=sif.stat().st_size - ROOM, epoch=epoch)
    with sif.open("r+b") as stream:
        stream.write(header)
        stream.seek(0)
        digest = hashlib.file_digest(stream, "sha256").digest()
        stream.seek(_UUID)
        stream.write(uuid.UUID(bytes=digest[:16], version=5).bytes)
    sif.chmod(0o755)


def fix(header: bytearray, *, size: int, epoch: int) -> None:
    """Set what Apptainer does not know, leaves to chance or leaves out.

    Args:
        header: All that comes before the file system, which is the last part.
        size: The size of the file system in bytes.
        epoch: Seconds since 1970.
    """
    # apptainer build writes this line, apptainer sif new does not.
    struct.pack_into("<32s", header, 0, _LAUNCH)
    struct.pack_into("<16sqq", header, _UUID, bytes(16), epoch, epoch)
    count, first = struct.unpack_from("<qq", header, 88)
    (parts,) = struct.unpack_from("<q", header, 112)
    struct.pack_into("<q", header, 120, len(header) + size - parts)
    for start in range(first, first + count * _DESCRIPTOR, _DESCRIPTOR):
        if not header[start + 4]:
            continue
        struct.pack_into("<qqqq", header, start + 41, epoch, epoch, 0, 0)
        begin, given, padded = struct.unpack_from("<qqq", header, start + 17)
        if begin == len(header):
            struct.pack_into("<qq", header, start + 25, size, padded - given + size)
