"""What a Docker engine exports, made fit for mksquashfs without touching the rest."""

import io
import tarfile
from collections.abc import Iterator

import pytest

from deploy.artefacts.sif_file import fit
from deploy.host.errors import BuildError

LONG = "/usr/share/" + "x" * 120
CONTENT = b"content" * 1000


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
def test_all_entries_keep_their_content(size):
    mended = b"".join(fit(_pieces(_archive(), size)))
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
                assert stream is not None
                assert stream.read() == CONTENT


def test_no_absolute_link_is_left_in_an_extended_header():
    mended = b"".join(fit(iter([_archive()])))
    assert b"linkpath=/" in _archive()
    assert b"linkpath=/" not in mended


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
