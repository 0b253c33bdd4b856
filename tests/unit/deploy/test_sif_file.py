"""The header of a .sif, made from one that Apptainer made for a stand-in."""

import struct
import uuid

from deploy.sif.sif_file import ROOM, fix

# Where the fields are, by the format's own definition and not by the code's.
CREATED, COUNT, FIRST, PARTS, TOTAL = 64, 88, 96, 112, 120
SIZE = 585


def _header(parts: list[tuple[int, int, int]]) -> bytearray:
    """A header as ``apptainer sif`` leaves it, for parts given as begin, size, padded size."""
    header = bytearray(ROOM)
    header[32:48] = b"SIF_MAGIC\x0001\x0002\0"
    header[48:64] = uuid.uuid4().bytes
    struct.pack_into("<qq", header, CREATED, 1_795_000_000, 1_795_000_001)
    struct.pack_into("<qqqqqq", header, 80, 48 - len(parts), 48, 4096, 48 * SIZE, 32176, 0)
    for number, (begin, size, padded) in enumerate(parts):
        at = 4096 + number * SIZE
        struct.pack_into("<i?iii", header, at, 0x4001, True, number + 1, 0xF0000001 - (1 << 32), 0)
        struct.pack_into("<qqqqqqq", header, at + 17, begin, size, padded, 7, 8, 1000, 1000)
    return header


def _descriptor(header: bytearray, number: int) -> tuple[int, ...]:
    return struct.unpack_from("<qqqqqqq", header, 4096 + number * SIZE + 17)


def test_sizes_times_and_owners_are_set() -> None:
    header = _header([(32176, 100, 100), (ROOM, 4096, ROOM + 4096 - 32276)])
    fix(header, size=1_000_000, epoch=315532800)
    assert header.startswith(b"#!/usr/bin/env run-singularity\n\0")
    assert bytes(header[48:64]) == bytes(16)
    assert struct.unpack_from("<qq", header, CREATED) == (315532800, 315532800)
    assert struct.unpack_from("<q", header, TOTAL) == (ROOM + 1_000_000 - 32176,)
    assert _descriptor(header, 0) == (32176, 100, 100, 315532800, 315532800, 0, 0)
    assert _descriptor(header, 1) == (
        ROOM,
        1_000_000,
        ROOM + 1_000_000 - 32276,
        315532800,
        315532800,
        0,
        0,
    )


def test_unused_descriptors_are_left_empty() -> None:
    header = _header([(ROOM, 4096, 4096)])
    fix(header, size=1, epoch=1)
    assert not any(header[4096 + SIZE : 4096 + 48 * SIZE])


def test_headers_made_at_different_times_become_the_same() -> None:
    one, two = (_header([(ROOM, 4096, 4096)]) for _ in range(2))
    assert one != two
    for header in (one, two):
        fix(header, size=5000, epoch=1)
    assert one == two
