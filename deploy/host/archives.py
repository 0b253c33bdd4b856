"""Tar archives that others have made: read whole, and told apart from damaged ones."""

import gzip
import io
import tarfile
import zlib
from typing import IO, cast

GZIP = b"\x1f\x8b"
"""What gzip begins with."""
DAMAGED = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError)
"""What reading a damaged archive raises; the last is of a sparse file's map."""


def unzipped(stream: IO[bytes]) -> IO[bytes]:
    """Return a stream of what another one has, or, if that is gzip, of what is packed in it.

    All of its parts are read, of which eStargz has many, and their checksums compared. By itself
    tarfile reads the first part alone, and compares nothing.
    """
    plain = io.BufferedReader(cast(io.RawIOBase, stream))
    is_zipped = plain.peek(len(GZIP))[: len(GZIP)] == GZIP
    return cast(IO[bytes], gzip.GzipFile(fileobj=plain) if is_zipped else plain)
