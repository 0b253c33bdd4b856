"""A supervisor with a stand-in for a server, whose stubs are processes that sleep."""

import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.deployment.deployment import Deployment
from deploy.deployment.plan import LaunchPlan
from deploy.deployment.state import DeploymentFolder, DeploymentState, ProcessId
from deploy.engines import supervise
from deploy.engines.server import GivenUpError, Note, Server, Stub
from deploy.engines.supervise import Supervisor
from tests.plans import make_plan


class Stubs:
    """Sleeping processes that stand for stubs."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []

    def add(self, model: str = "m") -> Stub:
        self.children.append(subprocess.Popen(["/bin/sleep", "600"]))
        return Stub(model, ProcessId.of(self.children[-1].pid))

    def kill(self, stub: Stub) -> None:
        [child] = [child for child in self.children if child.pid == stub.process.pid]
        child.kill()
        child.wait()

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()


class StandIn(Server):
    """A server that is ready at once, and whose stubs the test sets."""

    def __init__(self, plan: LaunchPlan, note: Note, own: list[Stub], still: bool) -> None:
        super().__init__(plan, note)
        self.identity = ProcessId.of(os.getpid())
        self.own = own
        self.stopped = self.killed = False
        self.still = still
        self.looks = 0
        note(server=self.identity)

    def wait_ready(self, *_positional: Any, patient: bool, **_named: Any) -> None:
        if self.still and not patient:
            raise GivenUpError("the server stopped starting")

    def living_stubs(self, *, stopped: bool = False) -> tuple[Stub, ...]:
        return tuple(stub for stub in self.own if stub.process.process() is not None)

    def stop(self) -> None:
        self.stopped = True

    def kill(self) -> None:
        self.killed = True

    def lines_since(self, position: int) -> tuple[str, int]:
        self.looks += 1
        return super().lines_since(position)

    def say(self, text: str) -> None:
        with self._plan.log.open("a") as log:
            log.write(f"{text}\n")


@dataclass(frozen=True)
class Answering:
    """A probe that is answered as the test says, in this order, and then always."""

    timeout: float = 0.0
    said: list[bool] = field(default_factory=list)
    asked: list[None] = field(default_factory=list)

    def answers(self) -> bool:
        self.asked.append(None)
        return self.said.pop(0) if self.said else True


@dataclass
class Clock:
    """One that the test can put forward."""

    ahead: float = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


class Run:
    """A supervisor at work, in a thread."""

    def __init__(self, folder: Path, stubs: Stubs, *, still: bool = False) -> None:
        self.folder, self.stubs = DeploymentFolder("m", folder), stubs
        self.version, self.other_version = (self.folder.repository / m / "1" for m in "mn")
        for version in (self.version, self.other_version):
            version.mkdir(parents=True)
        self.servers: list[StandIn] = []
        deployment = Deployment(name="m", engine="local", models=("m", "n"))
        plan = make_plan(self.folder.path, deployment=deployment, instances={"m": 2, "n": 1})

        def start(plan: LaunchPlan, note: Note) -> Server:
            own = [stubs.add(), stubs.add(), stubs.add("n")]
            self.servers.append(StandIn(plan, note, own, still))
            return self.servers[-1]

        self.probe, self.clock = Answering(), Clock()
        probe: Any = self.probe
        self.supervisor = Supervisor(self.folder, plan, start, probe, {"m": None, "n": None})
        self.thread = threading.Thread(target=self.supervisor.run)
        self.thread.start()
        self.until(lambda state: state.phase == "ready")

    @property
    def state(self) -> DeploymentState:
        return self.folder.require_state()

    def until(self, holds: Callable[[DeploymentState], bool]) -> None:
        deadline = time.monotonic() + 60
        while True:
            state = self.folder.state()
            if state is not None and holds(state):
                return
            assert time.monotonic() < deadline, state
            time.sleep(0.02)

    def until_touched(self, before: int) -> None:
        self.until(lambda _: self.version.stat().st_mtime_ns > before)

    def until_looked(self) -> None:
        """Wait until the supervisor has read all that a server that loads a model has said."""
        server, before = self.servers[-1], self.servers[-1].looks
        self.until(lambda _: server.looks > before + 1)

    def wait_long(self, part: float = 1.1) -> None:
        """Let more time pass than a load may take, or a part of it."""
        self.until_looked()
        self.clock.ahead += part * supervise.HEAL_S

    def until_healed(self) -> None:
        self.until(lambda state: (state.phase, state.heals) == ("ready", 1))

    def until_restarted(self) -> None:
        self.until(lambda state: (state.phase, state.restarts) == ("ready", 1))

    def lose_a_stub(self) -> StandIn:
        """Kill a stub of model m; return the server, once it is told to load that again."""
        [server], before = self.servers, self.version.stat().st_mtime_ns
        self.stubs.kill(server.own[0])
        self.until_touched(before)
        return server

    def start_stubs(self) -> list[Stub]:
        """Start new stubs of model m."""
        new = [self.stubs.add(), self.stubs.add()]
        self.servers[-1].own += new
        return new

    def close(self) -> None:
        self.supervisor.request_stop()
        self.thread.join()
