"""A worker thread that handles queued items in batches, in order of arrival."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

Item = TypeVar("Item")


class BatchWorker(Generic[Item]):
    """Hands items to a function in lists of at most `max_items`.

    A batch is handed over as soon as it is full, or when its oldest item has waited for
    `max_wait_s`. Items that arrive while a batch is being handled form the next one, so that
    batches grow with the load even without any waiting.

    Args:
        handle: Called in the worker thread, never with an empty list.
        abandon: Called in the worker thread if `handle` raises, with all the items that it was
            given and all that wait, and with the error. The worker ends then.
        max_items: Most items in a batch, at least 1.
        max_wait_s: Longest time (s) for which an item waits for others.
        most_waiting: Most items that wait; more are refused. None: once the next batch is full,
            whoever submits waits.
    """

    def __init__(
        self,
        handle: Callable[[list[Item]], None],
        abandon: Callable[[list[Item], BaseException], None],
        *,
        max_items: int,
        max_wait_s: float,
        most_waiting: int | None = None,
    ) -> None:
        self._handle = handle
        self._abandon = abandon
        self._max_items = max_items
        self._max_wait_s = max_wait_s
        self._most_waiting = most_waiting
        self._waiting: deque[tuple[float, Item]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        # A daemon: a stub whose server was killed must exit, and has nobody left to answer.
        self._thread = threading.Thread(target=self._run, name="batch-worker", daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> Literal["taken", "full", "closed"]:
        """Queue an item if there is room; or take it, and block until there is for another.

        Returns:
            What became of it. One that was taken will be handled, or abandoned. A worker that was
            closed or has failed takes none.
        """
        with self._changed:
            if self._closed:
                return "closed"
            if self._most_waiting is not None and len(self._waiting) >= self._most_waiting:
                return "full"
            self._waiting.append((time.monotonic(), item))
            self._changed.notify_all()
            while (
                self._most_waiting is None
                and len(self._waiting) >= self._max_items
                and not self._closed
            ):
                self._changed.wait()
            return "taken"

    def close(self) -> None:
        """Stop accepting items, drain the queue, and return."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                self._handle(batch)
            except BaseException as error:
                with self._changed:
                    self._closed = True
                    held = [*batch, *(item for _, item in self._waiting)]
                    self._waiting.clear()
                    self._changed.notify_all()
                self._abandon(held, error)
                return

    def _next_batch(self) -> list[Item]:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            while self._waiting and len(self._waiting) < self._max_items and not self._closed:
                remaining = self._waiting[0][0] + self._max_wait_s - time.monotonic()
                if remaining <= 0:
                    break
                self._changed.wait(remaining)
            size = min(len(self._waiting), self._max_items)
            batch = [self._waiting.popleft()[1] for _ in range(size)]
            self._changed.notify_all()
            return batch
