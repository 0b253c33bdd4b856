"""Whether a server still answers. It is asked in a thread: the watch must not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

INTERVAL_S = 2.0
DEADLINE_S = 5.0
MOST = 3


class Pulse:
    """Asks a server every `INTERVAL_S`, from when it is made until it is stopped.

    A process that is stopped, hangs or swaps is alive for the system, but answers nobody. Several
    questions in a row, each with `DEADLINE_S` to answer, must fail: a busy host may miss one.
    """

    def __init__(self, answers: Callable[[], bool]) -> None:
        self._answers = answers
        self._failed = 0
        self._stop = threading.Event()
        threading.Thread(target=self._ask, daemon=True).start()

    @property
    def lost(self) -> bool:
        """Whether `MOST` questions in a row were not answered; nothing is asked after that."""
        return self._failed >= MOST

    def stop(self) -> None:
        self._stop.set()

    def _ask(self) -> None:
        while not self.lost and not self._stop.wait(INTERVAL_S):
            self._failed = 0 if self._answers() else self._failed + 1
