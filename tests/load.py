"""Clients that ask golden events at one address, over the one connection that gRPC gives them."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from deploy.client.endpoint import Endpoint
from deploy.client.probe import ask_golden
from deploy.client.transport import TritonTransport
from deploy.host.errors import KitError
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.golden import read_golden
from tests.kit import SOON_S

# Of a client, between two requests: that each is answered is what is shown, not how many can be.
PAUSE_S = 0.1


@dataclass
class Load:
    """Requests from entering the block to its end, and until there were ``least`` of them.

    Attributes:
        wrong: What was wrong, or failed, one line for each request.
    """

    url: str
    ca: Path | None
    least: int
    clients: int = 4
    model: str = "nugraph3"
    asked: int = 0
    wrong: list[str] = field(default_factory=list)
    _enough: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._ask) for _ in range(self.clients)]
        for client in self._threads:
            client.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if kind is not None:
            self.least = 0
        self._enough.set()
        for client in self._threads:
            client.join()

    def _ask(self) -> None:
        golden = read_golden(MODEL_REPOSITORY / self.model / "1" / "golden.npz")
        endpoint = Endpoint.parse(self.url, ca=self.ca)
        with closing(TritonTransport(endpoint, timeout=SOON_S)) as transport:
            while not self._enough.is_set() or self.asked < self.least:
                try:
                    wrong = ask_golden(transport, self.model, golden)
                except KitError as error:
                    wrong = str(error)
                with self._lock:
                    self.asked += 1
                    if wrong is not None:
                        self.wrong.append(wrong)
                self._enough.wait(PAUSE_S)
