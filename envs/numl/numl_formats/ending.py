"""How what runs beside a server ends."""

import signal
from collections.abc import Callable
from typing import NoReturn


def end_at_signals(status: Callable[[int], int] = lambda _: 0) -> list[int]:
    """Have SIGTERM and SIGINT end this process with an exit status, which may depend on which.

    A container's first process ignores every signal that it does not handle.

    Returns:
        A list that has the status once a signal came. What a handler raises where something is
        finalized goes no further: who loops looks there, too.
    """
    came: list[int] = []

    def end(number: int, _frame: object) -> NoReturn:
        came.append(status(number))
        raise SystemExit(came[0])

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return came
