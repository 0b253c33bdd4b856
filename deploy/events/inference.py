"""Many events through one server: bounded concurrency, retries, ordered answers."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from deploy.client.pool import Transport
from deploy.client.transport import ServedModel
from deploy.events.answers import Labels, assemble
from deploy.events.files import Events, EventTensors
from deploy.events.grouping import EventId
from deploy.events.tables import EventFileError
from deploy.host.errors import KitError, NoAnswerError, RequestError, ServerAwayError

# How long an event waits for a server that went away. The pauses between its attempts double,
# from a quarter of a second to five.
PATIENCE_S = 60.0
_WAIT_SECONDS = 0.2
_LAST_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Failure:
    """An event without an answer; the id is None for a file that could not be read at all.

    ``refused`` is False if it may be answered another time.
    """

    event_id: EventId | None
    source: str
    reason: str
    refused: bool = True

    def document(self) -> dict[str, Any]:
        return {"event_id": self.event_id, "file": self.source, "reason": self.reason}


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """An event's labels, the seconds of the successful attempt, and the number of failed ones."""

    labels: Labels
    latency_s: float
    retries: int


def read_event(file: Events, index: int) -> EventTensors | Failure:
    """Return the event ``index`` of ``event_ids``, or the failure to read it."""
    try:
        return file.read(index)
    except EventFileError as error:
        # Damage is there the next time, too; what the system says, as of NFS, need not be.
        lasting = getattr(error.__cause__, "errno", None) is None
        return Failure(file.event_ids[index], str(file.path), error.cause, refused=lasting)


class ServerLostError(KitError):
    """The server was unreachable for longer than the retry policy waits."""


P = TypeVar("P")


class _Asked:
    """An event for a server; it has an outcome once its lock is released.

    A plain lock: to make a `Future` and wait for it costs several times as much.
    """

    __slots__ = ("event", "lock", "outcome")

    def __init__(self, event: EventTensors) -> None:
        self.event, self.lock = event, threading.Lock()
        self.lock.acquire()
        self.outcome: Answer | KitError


def infer(
    events: Iterable[EventTensors | P],
    model: ServedModel,
    connect: Callable[[], Transport],
    *,
    concurrency: int = 4,
    stop: threading.Event | None = None,
    patience: float | None = None,
) -> Iterator[Answer | Failure | P]:
    """Send events; yield an answer or a failure for each, in their order.

    What is no event, such as a failure to read one, passes through. At most
    ``2 * concurrency`` events are in memory. If the server stays away for the patience (s) of two
    events in a row, ServerLostError ends it. What ``events`` raises comes after the answers to
    those before it.
    """
    patience = PATIENCE_S if patience is None else patience
    stopped = threading.Event() if stop is None else stop
    work: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
    arguments = (work, model, connect, stopped, patience)
    threads: list[threading.Thread] = []
    broken: list[Exception] = []
    source = _until_broken(events, broken)
    window: deque[_Asked | P] = deque()
    given_up = 0
    try:
        while len(threads) < concurrency:
            threads.append(_started(threading.Thread(target=_serve, args=arguments, daemon=True)))
        while not stopped.is_set():
            while len(window) < 2 * concurrency and (item := next(source, None)) is not None:
                if isinstance(item, EventTensors):
                    asked = _Asked(item)
                    window.append(asked)
                    work.put(asked)
                else:
                    window.append(item)
            if not window:
                if broken:
                    raise broken[0]
                break
            first = window[0]
            # Short waits: a signal's handler runs between them.
            if isinstance(first, _Asked) and not first.lock.acquire(timeout=_WAIT_SECONDS):
                continue
            window.popleft()
            if not isinstance(first, _Asked):
                yield first
            elif isinstance(first.outcome, Answer):
                given_up = 0
                yield first.outcome
            else:
                error = first.outcome
                given_up = given_up + 1 if isinstance(error, ServerAwayError) else 0
                if given_up > 1:
                    cause = f"the server was unreachable for {patience:g} s: {error.cause}"
                    remedy = "numlkit status on its host, or numlkit smoke --url"
                    raise ServerLostError(cause, remedy) from error
                # Whatever else went wrong may go well another time.
                refused = isinstance(error, RequestError) and not isinstance(error, NoAnswerError)
                yield Failure(first.event.event_id, first.event.source, error.cause, refused)
    finally:
        stopped.set()
        for _ in threads:
            work.put(None)
        _join(threads)


def _started(thread: threading.Thread) -> threading.Thread:
    try:
        thread.start()
    except RuntimeError as error:
        cause = "no more threads can be started here"
        raise KitError(cause, "fewer requests at once: a smaller --concurrency") from error
    return thread


def _join(threads: Sequence[threading.Thread]) -> None:
    # A request in flight ends within its own timeout; a daemon thread may outlive us.
    deadline = time.monotonic() + _LAST_WAIT_S
    for thread in threads:
        thread.join(timeout=max(0.0, deadline - time.monotonic()))


def _until_broken(events: Iterable[P], broken: list[Exception]) -> Iterator[P]:
    """Yield events; what they raise, if anything, ends them and goes to ``broken``."""
    try:
        yield from events
    except Exception as error:  # whatever it is, it is raised later
        broken.append(error)


def _serve(
    work: queue.SimpleQueue[_Asked | None],
    model: ServedModel,
    connect: Callable[[], Transport],
    stop: threading.Event,
    patience: float,
) -> None:
    transport: Transport | None = None
    try:
        while (asked := work.get()) is not None and not stop.is_set():
            try:
                transport = transport or connect()
                asked.outcome = ask(transport, model, asked.event, stop, patience=patience)
            except Exception as error:  # whoever waits must hear of it, whatever it is
                asked.outcome = as_kit_error(error)
            asked.lock.release()
    finally:
        if transport is not None:
            transport.close()


def as_kit_error(error: Exception) -> KitError:
    """Return what went wrong with an event, with a cause in one line whatever it is."""
    if isinstance(error, KitError):
        return error
    text = " ".join(str(error).split())
    told = KitError(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    told.__cause__ = error
    return told


def ask(
    transport: Transport,
    model: ServedModel,
    event: EventTensors,
    stop: threading.Event,
    *,
    patience: float,
) -> Answer:
    """Send one event until it is answered or the patience runs out."""
    give_up: float | None = None
    pause = patience / 240
    retries = 0
    while True:
        started = time.monotonic()
        try:
            outputs = transport.infer(model, event.tensors)
            latency = time.monotonic() - started
            return Answer(assemble(event, outputs, model.planes), latency, retries)
        except ServerAwayError as error:
            give_up = give_up or time.monotonic() + patience
            if time.monotonic() + pause > give_up:
                raise
            if stop.wait(pause):
                raise RequestError("interrupted") from error
            pause = min(2 * pause, patience / 12)
            retries += 1
