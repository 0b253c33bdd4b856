"""Gzip by all cores: what any reader of gzip makes of it, and that cores do not matter."""

import gzip
import io
import itertools
import random
import zlib
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.packing import gzip_writer
from deploy.packing.gzip_writer import GzipWriter


def written(chunks: Iterable[bytes], level: int = 4) -> bytes:
    stream = io.BytesIO()
    with GzipWriter(stream, level) as writer:
        for chunk in chunks:
            assert writer.write(chunk) == len(chunk)
    return stream.getvalue()


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterable[None]:
    """Boundaries between blocks are what can go wrong: many of them in little data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gzip_writer, "_BLOCK", 64)
        yield


@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(1, 9))
@settings(deadline=None)
def test_gzip_reads_back_what_was_written(chunks: list[bytes], level: int) -> None:
    assert gzip.decompress(written(chunks, level)) == b"".join(chunks)


@given(st.binary(max_size=1000), st.lists(st.integers(0, 1000), max_size=5))
@settings(deadline=None)
def test_the_bytes_depend_on_the_content_alone(content: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    chunks = [content[a:b] for a, b in itertools.pairwise(places)]
    assert written(chunks) == written([content])


@pytest.mark.parametrize("cores", [1, 7])
def test_the_bytes_do_not_depend_on_the_cores(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = random.Random(1).randbytes(5000)
    expected = written([content])
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert written([content]) == expected


def test_it_is_one_member_as_readers_of_archives_want_it() -> None:
    packed = written([b"x" * 1000])
    reader = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert reader.decompress(packed) == b"x" * 1000
    assert reader.eof
    assert reader.unused_data == b""


def test_what_repeats_across_blocks_is_found() -> None:
    content = random.Random(1).randbytes(60) * 50
    assert len(written([content])) < len(content) / 3
