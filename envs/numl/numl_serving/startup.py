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
        server, process = _started(os.getppid()), _started(os.getpid())
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


def _started(pid: int) -> float:
    content = Path(f"/proc/{pid}/stat").read_bytes()
    # The second field, the program's name in brackets, may hold any bytes, brackets too.
    ticks = int(content.rpartition(b")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")
