"""Make the tar that a Docker engine exports fit for ``mksquashfs``, as it comes.

Two things are changed. The mark of a Docker container, ``/.dockerenv``, is left out. And
absolute symbolic links that only an extended (pax) header can name, being long or not
ASCII, are named in GNU's way instead: of those in pax headers mksquashfs drops the leading
slash (seen in 4.5.1).
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator

_BLOCK = tarfile.BLOCKSIZE
_MARK = b".dockerenv"


def fit(chunks: Iterable[bytes]) -> Iterator[bytes | memoryview]:
    """Yield a tar with the changes, its data in the pieces they come in.

    Args:
        chunks: The archive as exported, in pieces of any size.
    """
    source = _Source(chunks)
    while header := source.take(_BLOCK):
        kind = header[156:157]
        if kind == b"x":
            extended = source.take(_padded(_size(header)))
            yield from _link_named_otherwise(header, extended, source)
        elif header[: len(_MARK) + 1] == _MARK + b"\0":
            source.take(_padded(_size(header)))
        else:
            yield header
            yield from source.pass_on(_padded(_size(header)))


def _link_named_otherwise(
    header: bytes, extended: bytes, source: _Source
) -> Iterator[bytes | memoryview]:
    records = dict(_records(extended[: _size(header)]))
    entry = source.take(_BLOCK)
    size = int(records.get(b"size", _size(entry)))
    target = records.get(b"linkpath", b"")
    if entry[156:157] == tarfile.SYMTYPE and target.startswith(b"/"):
        del records[b"linkpath"]
        link = tarfile.TarInfo("././@LongLink")
        link.type, link.size = tarfile.GNUTYPE_LONGLINK, len(target) + 1
        yield link.tobuf(tarfile.GNU_FORMAT) + _filled(target + b"\0")
        if b"path" in records:
            path = records.pop(b"path")
            name = tarfile.TarInfo("././@LongLink")
            name.type, name.size = tarfile.GNUTYPE_LONGNAME, len(path) + 1
            yield name.tobuf(tarfile.GNU_FORMAT) + _filled(path + b"\0")
    else:
        yield header + extended
    yield entry
    yield from source.pass_on(_padded(size))


class _Source:
    """Reads pieces as a stream without copying the large ones."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def pass_on(self, size: int) -> Iterator[memoryview]:
        while size:
            if not self._rest:
                self._rest = memoryview(next(self._chunks, b""))
                if not self._rest:
                    return
            piece, self._rest = self._rest[:size], self._rest[size:]
            size -= len(piece)
            yield piece

    def take(self, size: int) -> bytes:
        return b"".join(self.pass_on(size))


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    # "LENGTH NAME=VALUE\n", where LENGTH counts all of it.
    while data:
        length = int(data[: data.index(b" ")])
        name, _, value = data[data.index(b" ") + 1 : length - 1].partition(b"=")
        yield name, value
        data = data[length:]


def _size(header: bytes) -> int:
    field = header[124:136]
    if field[0] & 0x80:  # 8 GiB and more do not fit in octal digits
        return int.from_bytes(field[1:], "big")
    return int(field.rstrip(b"\0 ") or b"0", base=8)


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _filled(data: bytes) -> bytes:
    return data.ljust(_padded(len(data)), b"\0")
