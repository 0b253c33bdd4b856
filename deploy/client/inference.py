"""Many events through one server: bounded concurrency, retries, answers in order."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass

from deploy.client.answers import Labels, assemble
from deploy.client.errors import RequestError, ServerAwayError
from deploy.client.events import EventTensors
from deploy.client.grouping import EventId
from deploy.client.transport import ServedModel, Transport
from deploy.errors import KitError

_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a lost server is waited for.

    Attributes:
        budget_s: Seconds from an event's first failure until it is given up.
        first_s: The first pause; each next one is twice as long.
        longest_s: No pause is longer.
    """

    budget_s: float = 60.0
    first_s: float = 0.25
    longest_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Failure:
    """An event without an answer.

    Attributes:
        event_id: Run, subrun, event; None for a file that could not be read at all.
        source: The file it comes from.
        reason: One line.
    """

    event_id: EventId | None
    source: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """An event's labels.

    Attributes:
        labels: What the server answered.
        latency_s: Seconds from sending to answer, of the attempt that succeeded.
        retries: Attempts before it that failed.
    """

    labels: Labels
    latency_s: float
    retries: int


class ServerLostError(KitError):
    """The server stayed away for longer than it was waited for."""


class _GivenUpError(Exception):
    """One event's retries are spent; ``reached`` says whether the server answered at all."""

    def __init__(self, error: ServerAwayError) -> None:
        super().__init__(error.cause)
        self.cause = error.cause


Work = tuple[EventTensors, "Future[Answer]"]


def infer(
    events: Iterable[EventTensors | Failure],
    model: ServedModel,
    connect: Callable[[], Transport],
    *,
    concurrency: int = 4,
    retry: RetryPolicy | None = None,
    stop: threading.Event | None = None,
) -> Iterator[Answer | Failure]:
    """Ask about events; yield an answer or a failure for each, in their order.

    At most ``2 * concurrency`` events are held in memory. ``connect`` is called in
    each of the ``concurrency`` threads, its transport is used and closed there.

    Args:
        events: Events to send; failures (an event that could not be read) pass through.
        model: The model to ask.
        connect: Opens a connection.
        concurrency: How many requests may be under way at once.
        retry: How long to wait for a server that went away.
        stop: Once it is set no more is yielded.

    Raises:
        ServerLostError: The server stayed away for the whole budget of two events in
            a row. Answers that came before have been yielded.
    """
    policy = retry or RetryPolicy()
    stopped = threading.Event() if stop is None else stop
    work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
    threads = [
        threading.Thread(target=_serve, args=(work, model, connect, policy, stopped), daemon=True)
        for _ in range(concurrency)
    ]
    for thread in threads:
        thread.start()
    window: deque[tuple[EventTensors, Future[Answer]] | Failure] = deque()
    given_up = 0
    try:
        source = iter(events)
        exhausted = False
        while (window or not exhausted) and not stopped.is_set():
            while not exhausted and len(window) < 2 * concurrency:
                item = next(source, None)
                if item is None:
                    exhausted = True
                elif isinstance(item, Failure):
                    window.append(item)
                else:
                    future: Future[Answer] = Future()
                    work.put((item, future))
                    window.append((item, future))
            if not window:
                break
            first = window.popleft()
            if isinstance(first, Failure):
                yield first
                continue
            event, future = first
            # Short waits: a signal's handler runs between them.
            while not future.done() and not stopped.is_set():
                wait([future], timeout=_WAIT_SECONDS)
            if not future.done():
                break
            try:
                answer = future.result()
            except _GivenUpError as error:
                given_up += 1
                if given_up > 1:
                    raise ServerLostError(
                        f"the server stayed away for {policy.budget_s:g} s: {error.cause}",
                        "look at it with: python3 deploy/status.py",
                    ) from error
                yield Failure(event.event_id, event.source, error.cause)
            except KitError as error:
                given_up = 0
                yield Failure(event.event_id, event.source, error.cause)
            else:
                given_up = 0
                yield answer
    finally:
        stopped.set()
        for _ in threads:
            work.put(None)
        for thread in threads:
            # A request under way ends within its own timeout; a daemon thread may outlive us.
            thread.join(timeout=2.0)


def _serve(
    work: queue.SimpleQueue[Work | None],
    model: ServedModel,
    connect: Callable[[], Transport],
    policy: RetryPolicy,
    stop: threading.Event,
) -> None:
    """Answer events from the queue until it says stop."""
    transport: Transport | None = None
    try:
        while (item := work.get()) is not None and not stop.is_set():
            event, future = item
            try:
                transport = transport or connect()
                future.set_result(_ask(transport, model, event, policy, stop))
            except Exception as error:  # whatever it is, the one who waits must hear of it
                future.set_exception(error)
    finally:
        if transport is not None:
            transport.close()


def _ask(
    transport: Transport,
    model: ServedModel,
    event: EventTensors,
    policy: RetryPolicy,
    stop: threading.Event,
) -> Answer:
    """Ask about one event until there is an answer or the budget is spent."""
    first_failure: float | None = None
    pause = policy.first_s
    retries = 0
    while True:
        started = time.monotonic()
        try:
            outputs = transport.infer(model, event.tensors)
            return Answer(
                assemble(event, outputs, model.planes), time.monotonic() - started, retries
            )
        except ServerAwayError as error:
            now = time.monotonic()
            first_failure = now if first_failure is None else first_failure
            if now + pause - first_failure > policy.budget_s:
                raise _GivenUpError(error) from error
            if stop.wait(pause):
                raise RequestError("interrupted") from error
            pause = min(2 * pause, policy.longest_s)
            retries += 1
