"""Kill model processes, and measure how soon their supervisor has replaced them."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import time
from collections.abc import Sequence

from deploy.deployment.deployment import Deployment
from deploy.deployment.state import DeploymentFolder, DeploymentState
from deploy.engines.local import LocalEngine
from deploy.engines.resolved import Resolved
from deploy.engines.server import living_stubs
from deploy.host.console import Say
from deploy.host.errors import LaunchError
from scripts.benchmarks.document import Document
from scripts.benchmarks.tables import Table

DEADLINE_S = 60.0
# By then Triton has ended the processes that were replaced.
SETTLE_S = 3.0


def measure_heals(deployment: Deployment, rounds: int, say: Say) -> list[float]:
    """Return the seconds from each kill until every instance is replaced and answers."""
    engine, folder = LocalEngine(Resolved(deployment)), DeploymentFolder(deployment.name)
    state = engine.launch(plan=engine.plan(), say=say)
    seconds = []
    try:
        for model in deployment.models * rounds:
            assert state.server is not None
            server = state.server.process()
            if server is None:
                raise LaunchError("the server has ended")
            own = [stub.process for stub in living_stubs(server) if stub.model == model]
            started = time.monotonic()
            os.kill(max(own, key=lambda process: process.started).pid, signal.SIGKILL)
            state = _healed(folder, state.heals)
            seconds.append(time.monotonic() - started)
            say(f"{model}: replaced after {seconds[-1]:.2f} s")
            time.sleep(SETTLE_S)
    finally:
        engine.stop(folder, state)
        shutil.rmtree(folder.path, ignore_errors=True)
    return seconds


def _healed(folder: DeploymentFolder, before: int) -> DeploymentState:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        state = folder.require_state()
        if state.heals > before and state.phase == "ready":
            return state
        time.sleep(0.01)
    raise LaunchError(f"a dead model process was not replaced within {DEADLINE_S:.0f} s")


def heal_document(seconds: Sequence[float]) -> Document:
    """Return the times (s) as JSON data."""
    return {
        "format": 1,
        "heals": len(seconds),
        "median": statistics.median(seconds),
        "longest": max(seconds),
    }


def heal_table(run: Document) -> Table:
    row = ("killed to renewed", f"{run['median']:.2f}", f"{run['longest']:.2f}")
    return Table(f"{run['heals']} dead model processes", ("s", "median", "longest"), [row])
