"""The header of a .sif, as Apptainer leaves it and as it has to be."""

import struct
import uuid

from deploy.artefacts.sif_file import fix

# Where the fields are, by the format's own definition and not by the code's.
CREATED, COUNT, FIRST = 64, 88, 96
SIZE = 585
HEADER = 1 << 16


def _header(parts: list[tuple[int, int, int]]) -> bytearray:
    """A header as ``apptainer sif`` leaves it, for parts given as begin, size, padded size."""
    header = bytearray(HEADER)
    header[32:48] = b"SIF_MAGIC\x0001\x0002\0"
    header[48:64] = uuid.uuid4().bytes
    struct.pack_into("<qq", header, CREATED, 1_795_000_000, 1_795_000_001)
    struct.pack_into("<qqqqqq", header, 80, 48 - len(parts), 48, 4096, 48 * SIZE, 32176, 99)
    for number, (begin, size, padded) in enumerate(parts):
        at = 4096 + number * SIZE
        struct.pack_into("<i?iii", header, at, 0x4001, True, number + 1, 0xF0000001 - (1 << 32), 0)
        struct.pack_into("<qqqqqqq", header, at + 17, begin, size, padded, 7, 8, 1000, 1000)
    return header


def _descriptor(header: bytearray, number: int) -> tuple[int, ...]:
    return struct.unpack_from("<qqqqqqq", header, 4096 + number * SIZE + 17)


def test_id_times_and_owners_are_set_and_nothing_else():
    header = _header([(32176, 100, 100), (36864, 4096, 8684)])
    fix(header, epoch=315532800)
    assert header.startswith(b"#!/usr/bin/env run-singularity\n\0")
    assert header[32:48] == b"SIF_MAGIC\x0001\x0002\0"
    assert bytes(header[48:64]) == bytes(16)
    assert struct.unpack_from("<qq", header, CREATED) == (315532800, 315532800)
    assert struct.unpack_from("<qqqqqq", header, 80) == (46, 48, 4096, 48 * SIZE, 32176, 99)
    assert _descriptor(header, 0) == (32176, 100, 100, 315532800, 315532800, 0, 0)
    assert _descriptor(header, 1) == (36864, 4096, 8684, 315532800, 315532800, 0, 0)


def test_unused_descriptors_are_left_empty():
    header = _header([(36864, 4096, 4096)])
    fix(header, epoch=1)
    assert not any(header[4096 + SIZE : 4096 + 48 * SIZE])


def test_headers_made_at_different_times_become_the_same():
    one, two = (_header([(36864, 4096, 4096)]) for _ in range(2))
    assert one != two
    for header in (one, two):
        fix(header, epoch=1)
    assert one == two
