"""The Python backend's processes: one stub per model instance, a child of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.state import ProcessId

STUB = "triton_python_backend_stub"


@dataclass(frozen=True)
class Stub:
    """A living stub.

    Attributes:
        model: The model it runs.
        process: Its identity.
    """

    model: str
    process: ProcessId


def living_stubs(server: psutil.Process) -> tuple[Stub, ...]:
    """Return the stubs of ``server`` that are alive: neither ended nor stopped.

    A zombie's command line is empty.
    """
    stubs = []
    try:
        children = server.children()
    except psutil.NoSuchProcess:
        return ()
    for child in children:
        try:
            command = child.cmdline()
            # STUB .../MODEL/VERSION/model.py REGION ...
            is_stub = len(command) > 2 and Path(command[0]).name == STUB
            if is_stub and child.status() != psutil.STATUS_STOPPED:
                stubs.append(Stub(Path(command[1]).parents[1].name, ProcessId.of(child.pid)))
        except psutil.Error:
            continue
    return tuple(stubs)


def memory_in_use(server: psutil.Process) -> int:
    """Return the bytes that ``server`` and its stubs hold, shared ones counted once."""
    total = 0
    try:
        for process in (server, *server.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
    except psutil.NoSuchProcess:
        return 0
    return total


def missing_stubs(stubs: Iterable[Stub], wanted: Mapping[str, int]) -> dict[str, int]:
    """Return, for each model with fewer living stubs than are wanted, how many are missing."""
    alive = Counter(stub.model for stub in stubs)
    return {model: n - alive[model] for model, n in wanted.items() if alive[model] < n}
