"""How long a model instance takes to start, phase by phase. Standard library only.

Times are seconds since the system's start, in which the kernel gives the start of a process, too
(``/proc/PID/stat``, field 22, proc(5)).
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def now() -> float:
    """Return the seconds since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


IMPORTED = now()
"""When this package was first imported; the time before that is the interpreter's."""


class Startup:
    """Takes the time of phases that follow each other, from the server's start on.

    Made when the imports are done. The stub is a child of its server.
    """

    def __init__(self) -> None:
        parent, process = parent_and_start("self")
        _, server = parent_and_start(str(parent))
        self._ends = [
            ("server", server),
            ("process", process),
            ("interpreter", IMPORTED),
            ("imports", now()),
        ]

    def end(self, phase: str) -> None:
        """Mark the end of a phase."""
        self._ends.append((phase, now()))

    def __str__(self) -> str:
        """Return all phases as one line, in seconds with two decimals."""
        times = [time for _, time in self._ends]
        phases = [
            f"{name} {end - begin:.2f}"
            for (name, end), begin in zip(self._ends[1:], times, strict=False)
        ]
        return f"ready {times[-1] - times[0]:.2f} s after its server's start: {', '.join(phases)}"


def parent_and_start(process: str) -> tuple[int, float]:
    """Return the parent of a process, or of a thread ``PID/task/TID``, and when it started.

    OSError if it has ended.
    """
    content = Path(f"/proc/{process}/stat").read_bytes()
    # The second field, the program's name in brackets, may hold any bytes, brackets too.
    fields = content.rpartition(b")")[2].split()
    return int(fields[1]), int(fields[19]) / os.sysconf("SC_CLK_TCK")
