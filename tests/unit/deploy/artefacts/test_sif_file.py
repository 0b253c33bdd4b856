"""A .sif: what of an export mksquashfs gets, what it is told, and the header that is mended."""

import io
import struct
import tarfile
import uuid
from collections.abc import Iterator

import pytest

from deploy.artefacts import sif
from deploy.artefacts.sif import SifBuilder
from deploy.artefacts.sif_file import fit, fix, options, variables
from deploy.artefacts.tools import SifTools, Tool
from deploy.host.errors import BuildError
from tests.environments import ignore

LONG = "/usr/share/" + "x" * 120
CONTENT = b"content" * 1000
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


def test_id_times_and_owners_are_set_and_nothing_else_nor_in_unused_descriptors():
    header = _header([(32176, 100, 100), (36864, 4096, 8684)])
    fix(header, epoch=315532800)
    assert header.startswith(b"#!/usr/bin/env run-singularity\n\0")
    assert header[32:48] == b"SIF_MAGIC\x0001\x0002\0"
    assert bytes(header[48:64]) == bytes(16)
    assert struct.unpack_from("<qq", header, CREATED) == (315532800, 315532800)
    assert struct.unpack_from("<qqqqqq", header, 80) == (46, 48, 4096, 48 * SIZE, 32176, 99)
    assert _descriptor(header, 0) == (32176, 100, 100, 315532800, 315532800, 0, 0)
    assert _descriptor(header, 1) == (36864, 4096, 8684, 315532800, 315532800, 0, 0)
    assert not any(header[4096 + 2 * SIZE : 4096 + 48 * SIZE])


def test_everything_that_would_differ_is_given_to_mksquashfs_and_the_time_once(monkeypatch):
    words = " ".join(options("zstd", epoch=7))
    assert words == (
        "-noappend -no-progress -quiet -no-xattrs -no-exports -all-root -mkfs-time 7 -all-time 7 "
        "-b 256K -comp zstd -Xcompression-level 2"
    )
    gzip = " ".join(options("gzip", epoch=7))
    assert gzip == words.replace("zstd", "gzip").replace("level 2", "level 6")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    assert "SOURCE_DATE_EPOCH" not in variables()


def test_it_is_compressed_by_what_its_tools_were_tried_with(monkeypatch, tmp_path):
    used: list[str] = []
    monkeypatch.setattr(sif, "squash", lambda *words: used.append(words[3]))
    monkeypatch.setattr(sif, "write_sif", lambda *words, epoch: words[3].touch())
    tools = SifTools(*(Tool(name, tmp_path, (9,)) for name in ("apptainer", "mksquashfs")), "gzip")
    SifBuilder(tools, 7, ignore)._finish(iter([]), {}, tmp_path / "out.sif", tmp_path)
    assert used == ["gzip"]


def _archive() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for left_out in (".dockerenv", "dev/console"):
            tar.addfile(tarfile.TarInfo(left_out))
        for name, content in (("bin/a", CONTENT), ("é" * 80, CONTENT), ("empty", b"")):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o640
            tar.addfile(info, io.BytesIO(content))
        for name, target in (
            ("short", "/bin/a"),
            ("long", LONG),
            ("n" * 120, LONG),
            ("unicode", "/usr/share/Főtanúsítvány.crt"),
            ("relative", "../" * 40 + "bin/a"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
        info = tarfile.TarInfo("hard")
        info.type, info.linkname = tarfile.LNKTYPE, "é" * 80
        tar.addfile(info)
    return out.getvalue()


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 100, 512, 1000, 1 << 20])
def test_all_entries_keep_their_content_and_no_absolute_link_is_in_an_extended_header(size):
    mended = b"".join(fit(_pieces(_archive(), size)))
    assert b"linkpath=/" in _archive()
    assert b"linkpath=/" not in mended
    with tarfile.open(fileobj=io.BytesIO(_archive())) as before:
        wanted = [m for m in before.getmembers() if m.name not in (".dockerenv", "dev/console")]
    with tarfile.open(fileobj=io.BytesIO(mended)) as after:
        got = after.getmembers()
        assert [(m.name, m.type, m.linkname, m.size, m.mode) for m in got] == [
            (m.name, m.type, m.linkname, m.size, m.mode) for m in wanted
        ]
        for member in got:
            if member.isreg() and member.size:
                stream = after.extractfile(member)
                assert stream.read() == CONTENT


def test_a_truncated_export_is_an_error():
    with pytest.raises(BuildError, match="ended early"):
        list(fit(iter([_archive()[:3000]])))


def test_a_size_of_eight_gibibytes_is_understood():
    info = tarfile.TarInfo("large")
    info.size = 9 << 30
    header = info.tobuf(tarfile.GNU_FORMAT)
    pieces = fit(iter([header, b"b" * (2 << 20)]))
    assert next(pieces) == header
    assert next(pieces) == b"b" * (1 << 20)
