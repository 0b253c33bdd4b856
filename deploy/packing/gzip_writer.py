"""Gzip by all cores, the same bytes whatever their number.

Blocks are compressed apart from each other, each with the end of the one before as its
dictionary, and joined to one ordinary gzip member (RFC 1951, 1952), as pigz does. Not
by pigz: its presence would decide over the archive's digest.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

_BLOCK = 512 * 1024
_WINDOW = 32 * 1024  # what deflate can refer back to


class GzipWriter(io.RawIOBase):
    """A file that compresses what is written to it.

    Args:
        stream: Where the gzip file goes; left open.
        level: 1 (fast) to 9 (small).
    """

    def __init__(self, stream: IO[bytes], level: int) -> None:
        super().__init__()
        self._stream = stream
        self._level = level
        self._pending = bytearray()
        self._window = b""
        self._sum = zlib.crc32(b"")
        self._size = 0
        self._cores = os.cpu_count() or 1
        self._executor = ThreadPoolExecutor(self._cores)
        self._blocks: deque[Future[bytes]] = deque()
        # No name and no time: nothing but the contents decides over the bytes.
        self._stream.write(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff")

    def writable(self) -> bool:
        """Tell that it can be written to."""
        return True

    def tell(self) -> int:
        """Return how many bytes it has been given."""
        return self._size + len(self._pending)

    def write(self, data: Any, /) -> int:
        """Take the next bytes."""
        self._pending += data
        while len(self._pending) >= _BLOCK:
            self._submit(bytes(self._pending[:_BLOCK]), last=False)
            del self._pending[:_BLOCK]
        return len(data)

    def close(self) -> None:
        """Compress what is left and finish the file."""
        if not self.closed:
            self._submit(bytes(self._pending), last=True)
            self._drain(0)
            self._stream.write(struct.pack("<LL", self._sum, self._size & 0xFFFFFFFF))
            self._executor.shutdown()
        super().close()

    def _submit(self, block: bytes, *, last: bool) -> None:
        self._sum = zlib.crc32(block, self._sum)
        self._size += len(block)
        self._blocks.append(
            self._executor.submit(_compress, block, self._window, self._level, last)
        )
        self._window = block[-_WINDOW:]
        # Some more than cores, so that none waits while the oldest block is written.
        self._drain(4 * self._cores)

    def _drain(self, left: int) -> None:
        while len(self._blocks) > left:
            self._stream.write(self._blocks.popleft().result())


def _compress(block: bytes, window: bytes, level: int, last: bool) -> bytes:
    compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zdict=window)
    compressed = compressor.compress(block)
    return compressed + compressor.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
