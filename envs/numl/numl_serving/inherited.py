"""Connections that a model process has inherited and must not keep. Standard library only.

Triton 2.51 opens its sockets without close-on-exec, so a process that it starts while clients are
connected, as after a death or an edit, holds their connections, too: when the server closes one,
its client is not told, and waits for an answer until its own timeout.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

STUB = "triton_python_backend_stub"


def close_inherited_connections(executable: Path = Path("/proc/self/exe")) -> int:
    """Close the TCP sockets that a stub has from its server; return how many there were.

    A stub talks to its server by shared memory, and has opened no connection of its own yet when
    its model is initialised. Other sockets, and the first three files, are left alone; so is
    everything in a process that is no stub.
    """
    if executable.readlink().name != STUB:
        return 0
    closed = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the names are numbers
        number = int(name)
        if number <= 2:
            continue
        with suppress(OSError):  # not a socket, or the listing's own
            found = socket.socket(fileno=number)
            if found.family in (socket.AF_INET, socket.AF_INET6):
                found.close()
                closed += 1
            else:
                found.detach()
    return closed
