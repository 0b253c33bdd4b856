"""Several servers as one: each request goes to the one with the fewest in flight.

A server that cannot be reached is left alone for a while, and its requests go to another. Retries
have a budget, so that clients of servers in trouble do not multiply their load.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from deploy.client.transport import BusyError, ServedModel
from deploy.host.errors import NoAnswerError, NoTritonError, RequestError, ServerAwayError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0
T = TypeVar("T")
# As in gRPC's retry throttling (proposal A6): a request earns a part of a retry.
_TOKENS, _TOKENS_PER_REQUEST = 20.0, 0.2


class Transport(Protocol):
    """A connection to one server, or to a pool of them; used by one thread."""

    def describe(self, model: str) -> ServedModel: ...

    def infer(self, model: ServedModel, tensors: Mapping[str, NDArray[Any]]) -> dict[str, Any]: ...

    def close(self) -> None: ...


class Connection(Transport, Protocol):
    """A connection to one server."""

    def parameters(self, model: str) -> dict[str, str]: ...


class Balancer:
    """What all connections of a client know of its servers; they are numbered from 0.

    Args:
        look: Called before each first try: it may change which servers there are.
    """

    def __init__(self, servers: int, look: Callable[[], None] = lambda: None) -> None:
        self._lock, self._look = threading.Lock(), look
        self._in_flight: list[int] = []
        self._away_until: list[float] = []
        self._pauses: list[float] = []
        self._there: Collection[int] = ()
        self._tokens = _TOKENS
        self.use(range(servers))

    def use(self, there: Collection[int]) -> None:
        """Send requests to these servers from now on; what is in flight is not touched."""
        with self._lock:
            more = max(there, default=-1) + 1 - len(self._in_flight)
            self._in_flight += [0] * more
            self._away_until += [0.0] * more
            self._pauses += [_FIRST_PAUSE_S] * more
            self._there = there

    def take(self, tried: Collection[int]) -> int | None:
        """Return a server for a request that these have been tried for; None: none is left.

        A first try goes somewhere even if all servers are away; another costs a token.
        """
        if not tried:
            self._look()
        with self._lock:
            now = time.monotonic()
            left = [i for i in self._there if i not in tried]
            here = [i for i in left if self._away_until[i] <= now]
            if tried:
                if not here or self._tokens < 1:
                    return None
                self._tokens -= 1
            else:
                self._tokens = min(_TOKENS, self._tokens + _TOKENS_PER_REQUEST)
            if not here:
                here = [min(left, key=self._away_until.__getitem__)]
            fewest = min(self._in_flight[i] for i in here)
            chosen = random.choice([i for i in here if self._in_flight[i] == fewest])
            self._in_flight[chosen] += 1
            return chosen

    def take_each(self) -> Iterator[int]:
        """Yield the servers that are not away, each for a request."""
        self._look()
        for server in range(len(self._in_flight)):
            with self._lock:
                if server not in self._there or self._away_until[server] > time.monotonic():
                    continue
                self._in_flight[server] += 1
            yield server

    def give_back(self, server: int, *, away: bool) -> None:
        """Note the end of a request, and whether the server could not be reached."""
        with self._lock:
            self._in_flight[server] -= 1
            if not away:
                self._away_until[server], self._pauses[server] = 0.0, _FIRST_PAUSE_S
                return
            now = time.monotonic()
            if self._away_until[server] <= now:  # not yet noted by another request
                self._away_until[server] = now + self._pauses[server]
                self._pauses[server] = min(2 * self._pauses[server], _LONGEST_PAUSE_S)


class PooledTransport:
    """A thread's connections to the servers of a balancer, opened by their numbers."""

    def __init__(self, balancer: Balancer, connect: Callable[[int], Connection]) -> None:
        self._balancer, self._connect = balancer, connect
        self._transports: dict[int, Connection] = {}

    def describe(self, model: str) -> ServedModel:
        return self._ask(lambda transport: transport.describe(model))

    def infer(self, model: ServedModel, tensors: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Ask a server, and others if it is away.

        Raises:
            ServerAwayError: All are away, or the budget of retries is spent.
        """
        return self._ask(lambda transport: transport.infer(model, tensors))

    def ask_each(self, call: Callable[[Connection], T]) -> list[T]:
        """Ask all servers; those that are away, or do not say, are left out."""
        answers = []
        for server in self._balancer.take_each():
            with suppress(NoTritonError, RequestError, ServerAwayError):
                answers.append(self._ask_one(server, call))
        return answers

    def _ask(self, call: Callable[[Connection], T]) -> T:
        tried: list[int] = []
        refusal: ServerAwayError | None = None
        while (server := self._balancer.take(tried)) is not None:
            try:
                return self._ask_one(server, call)
            except ServerAwayError as error:
                refusal = error
            tried.append(server)
        assert refusal is not None  # there is a first try
        raise refusal

    def _ask_one(self, server: int, call: Callable[[Connection], T]) -> T:
        """Ask a server that was taken, and give it back."""
        away = True
        try:
            if server not in self._transports:
                self._transports[server] = self._connect(server)
            answer = call(self._transports[server])
            away = False
            return answer
        except ServerAwayError as error:
            if not isinstance(error, BusyError):
                self._close(server)  # the next one is opened, and looked at, anew
            raise
        except RequestError as error:
            # One that hangs has the fewest in flight: it would get the next ones, too.
            away = isinstance(error, NoAnswerError)
            raise
        finally:
            self._balancer.give_back(server, away=away)

    def _close(self, server: int) -> None:
        transport = self._transports.pop(server, None)
        if transport is not None:
            transport.close()

    def close(self) -> None:
        for server in list(self._transports):
            self._close(server)
