"""Clients that crowd a front door: idle connections, half-sent requests, answers nobody reads.

They speak HTTP/2 by hand, since no library sends a request by half.
"""

import asyncio
import gzip
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.backend import INFER

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS = 0, 1, 3, 4
_END_HEADERS, _END_STREAM = 4, 1
_INITIAL_WINDOW = 4
_AT_ONCE = 200


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def _headers(*pairs: tuple[str, str]) -> bytes:
    """Literal header fields, with neither index nor compression (RFC 7541, 6.2.2)."""
    block = b""
    for name, value in pairs:
        assert max(len(name), len(value)) < 127
        block += b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return block


def _begin(*more: tuple[str, str], window: int = (1 << 16) - 1) -> bytes:
    """Preface, settings and the headers of an inference, on stream 1."""
    setting = _INITIAL_WINDOW.to_bytes(2, "big") + window.to_bytes(4, "big")
    head = {
        ":method": "POST",
        ":scheme": "https",
        ":path": INFER,
        ":authority": "numl",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0, setting)
        + _frame(_HEADERS, _END_HEADERS, 1, _headers(*head.items(), *more))
    )


def _message(body: bytes, *, compressed: bool = False) -> bytes:
    """A gRPC message."""
    return bytes([compressed]) + len(body).to_bytes(4, "big") + body


def ask_compressed(port: int, authority: Path, *encodings: str) -> None:
    """Ask for an inference with a message in gzip, and wait until the stream has ended.

    Args:
        encodings: A field ``grpc-encoding`` each, in this order: no library sends two.
    """
    trusted = ssl.create_default_context(cafile=str(authority))
    trusted.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), 30) as opened,
        trusted.wrap_socket(opened, server_hostname="127.0.0.1") as client,
        client.makefile("rb") as said,
    ):
        body = _message(gzip.compress(b"event"), compressed=True)
        begun = _begin(*(("grpc-encoding", encoding) for encoding in encodings))
        client.sendall(begun + _frame(_DATA, _END_STREAM, 1, body))
        kind = flags = 0
        while not (kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END_STREAM)):
            head = said.read(9)
            kind, flags = head[3], head[4]
            said.read(int.from_bytes(head[:3], "big"))


@dataclass(frozen=True)
class Crowd:
    """Clients of one kind, from addresses of their own.

    Attributes:
        count: How many of them.
        sent: What each sends, once it is connected.
        encrypted: Whether they go as far as TLS.
        addresses: From how many.
    """

    count: int
    sent: bytes = b""
    encrypted: bool = True
    addresses: int = 100
    protocol: str = "h2"

    @asynccontextmanager
    async def at(self, port: int, authority: Path) -> AsyncIterator[int]:
        """Let them in; yield how many were; they stay until the block ends."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        trusted = ssl.create_default_context(cafile=str(authority))
        trusted.set_alpn_protocols([self.protocol])
        slots = asyncio.Semaphore(_AT_ONCE)
        writers: list[asyncio.StreamWriter] = []

        async def enter(number: int) -> None:
            async with slots:
                with suppress(OSError, asyncio.TimeoutError):  # a door may refuse any of them
                    reader, writer = await asyncio.wait_for(
                        asyncio.open_connection(
                            "127.0.0.1",
                            port,
                            ssl=trusted if self.encrypted else None,
                            local_addr=(f"127.0.1.{1 + number % self.addresses}", 0),
                            limit=1,  # reads nothing more than it is asked to
                        ),
                        30,
                    )
                    writers.append(writer)
                    if self.sent:
                        reader._transport.pause_reading()
                        writer.write(self.sent)
                        with suppress(asyncio.TimeoutError):  # a door may take less
                            await asyncio.wait_for(writer.drain(), 1)

        try:
            await asyncio.gather(*(enter(number) for number in range(self.count)))
            yield len(writers)
        finally:
            for writer in writers:
                writer.transport.abort()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def idle(count: int, *, encrypted: bool = True) -> Crowd:
    """Connections without a request."""
    return Crowd(count, _PREFACE + _frame(_SETTINGS, 0, 0) if encrypted else b"", encrypted)


def half_sent(count: int, size: int) -> Crowd:
    """Requests over HTTP/1.1 of 15 MB of which ``size`` bytes come, and never the rest."""
    head = (
        "POST /v2/models/nugraph3/infer HTTP/1.1\r\nHost: numl\r\n"
        f"Content-Length: {15 << 20}\r\nInference-Header-Content-Length: 99\r\n\r\n"
    )
    return Crowd(count, head.encode() + bytes(size), protocol="http/1.1")


def slow_readers(count: int) -> Crowd:
    """Requests whose long answer is never read."""
    return Crowd(count, _begin(window=0) + _frame(_DATA, _END_STREAM, 1, _message(b"long")))
