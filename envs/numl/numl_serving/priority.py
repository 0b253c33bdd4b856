"""Computing goes before reading requests, where cores are short. Standard library only.

Triton reads a request before it can refuse it. At ten times a server's capacity, that would take a
fifth of its cores' time from the models; but to compute an event is worth more than to read one
that will be refused. Nobody may raise a priority without a privilege: so the threads of Triton's
endpoints get a lower one than the models' processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from numl_serving.inherited import is_stub
from numl_serving.startup import parent_and_start

# Where both want a core, such a thread gets a fifth of a model's time. With 11, requests waited so
# long to be read at ten times the capacity that two answers in five came too late; with 8, next to
# none.
LOWER_BY = 7


def lower_endpoints(executable: Path = Path("/proc/self/exe")) -> None:
    """Lower the priority of the endpoints of a stub's server; nothing happens in another process.

    Triton starts them when all its models are there: they are the threads that have started after
    the last process of a model. If that has come later, as after a death, there are none, and
    nothing changes.
    """
    if not is_stub(executable):
        return
    server = os.getppid()
    lowered = min(os.getpriority(os.PRIO_PROCESS, server) + LOWER_BY, 19)
    last_model = max(start for _, parent, start in _each("") if parent == server)
    for number, _, start in _each(f"{server}/task/"):
        if start > last_model:
            with suppress(OSError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, number, lowered)


def _each(folder: str) -> Iterator[tuple[int, int, float]]:
    """Yield the number, parent and start of each process, or of each thread of one."""
    for name in os.listdir(f"/proc/{folder}"):  # noqa: PTH208 - the names are numbers
        if name.isdigit():
            with suppress(OSError):  # it has ended
                yield int(name), *parent_and_start(f"{folder}{name}")
