"""Clients that ask a small server through a front door, and that server."""

import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import grpc

from tests.backend import INFER
from tests.certificates import Authority, Pair
from tests.doors import Server
from tests.kit import SOON_S, free_ports
from tests.programs import started

CLIENTS = 4


def trusting(authority: Authority, own: Pair | None = None) -> grpc.ChannelCredentials:
    """Return what a client checks its server with, and shows of itself."""
    shown = (None, None) if own is None else (own.key.read_bytes(), own.cert.read_bytes())
    return grpc.ssl_channel_credentials(authority.file.read_bytes(), *shown)


@dataclass
class Clients:
    """Clients of one name, and what they got.

    Attributes:
        took: Seconds until each right answer.
        failed: How many requests failed with each code.
    """

    port: int
    credentials: grpc.ChannelCredentials
    metadata: tuple[tuple[str, str], ...] = ()
    took: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def p99(self) -> float:
        return sorted(self.took)[int(0.99 * len(self.took))]

    def ask(self, requests: int, event: bytes, *, per_second: float | None = None) -> None:
        """Send this many requests, one after another on each connection, or at this rate."""
        pause = 0.0 if per_second is None else CLIENTS / per_second
        own = [("grpc.use_local_subchannel_pool", 1)]
        with ExitStack() as stack:
            threads = []
            for _ in range(CLIENTS):
                opened = grpc.secure_channel(f"127.0.0.1:{self.port}", self.credentials, own)
                words = (stack.enter_context(opened), requests // CLIENTS, event, pause)
                threads.append(threading.Thread(target=self._ask, args=words))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _ask(self, channel: grpc.Channel, requests: int, event: bytes, pause: float) -> None:
        call, due = channel.unary_unary(INFER), time.monotonic()
        for _ in range(requests):
            time.sleep(max(0, due - time.monotonic()))
            sent = time.monotonic()
            due = max(due, sent) + pause  # no burst after one that took long
            try:
                assert call(event, timeout=SOON_S, metadata=self.metadata) == b"right"
            except grpc.RpcError as error:
                self.failed[error.code().name] += 1
            else:
                self.took.append(time.monotonic() - sent)


@contextmanager
def backends(count: int, seconds: float) -> Iterator[list[Server]]:
    """Run servers that take ``seconds`` for a request, until the block ends."""
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            ports = free_ports()
            servers.append(Server(ports.http, ports.grpc))
            words = (sys.executable, "-m", "tests.backend", ports.grpc, ports.http, seconds)
            stack.enter_context(started(*words))
        yield servers


def asked(servers: Sequence[Server]) -> int:
    """Return how many inferences these servers were asked for."""
    return sum(
        int(urllib.request.urlopen(f"http://127.0.0.1:{server.http}/asked").read())
        for server in servers
    )
