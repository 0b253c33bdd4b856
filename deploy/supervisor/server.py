"""A tritonserver, however it runs: watched until it answers rightly, stopped, swept."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

from deploy.errors import LaunchError
from deploy.failures.table import diagnose, is_hopeless, last_words
from deploy.plan import LaunchPlan
from deploy.server.golden import GoldenEvent
from deploy.server.probe import Probe, smoke
from deploy.state import ProcessId
from deploy.supervisor.stubs import Stub, living_stubs, memory_in_use

_POLL_S = 0.1


class Note(Protocol):
    """Writes what is known of a server into the deployment's state, as soon as it is known."""

    def __call__(self, **changes: object) -> None:
        """Write ``changes``, which are fields of :class:`deploy.state.DeploymentState`."""


class Server(ABC):
    """A tritonserver that runs, or ran, after a plan.

    Args:
        plan: What was started.

    Attributes:
        identity: Its process on this host, in a container too; None before it runs.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        self._offset = plan.log.stat().st_size if plan.log.exists() else 0
        self.identity: ProcessId | None = None

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self.identity is not None and self.identity.process() is not None

    def output(self) -> str:
        """Return what it has said since its start."""
        with self._plan.log.open("rb") as log:
            log.seek(self._offset)
            return log.read().decode(errors="replace")

    def living_stubs(self) -> tuple[Stub, ...]:
        """Return its living stubs."""
        process = self.identity.process() if self.identity is not None else None
        return living_stubs(process) if process is not None else ()

    def outgrown(self) -> str | None:
        """Return, in words, by how much it and its stubs are beyond their memory limit, or None."""
        limit = self._plan.deployment.memory
        process = self.identity.process() if self.identity is not None else None
        if limit is None or process is None:
            return None
        used = memory_in_use(process)
        if used <= limit:
            return None
        return f"uses {used / 1e6:.0f} MB, its memory limit (--memory) is {limit / 1e6:.0f} MB"

    @abstractmethod
    def key(self) -> str | None:
        """Return the key to its admin endpoints, once it is ready; None if there is none.

        The plan's key file holds it, too.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop it, by force if it does not follow, and remove what it leaves behind.

        Raises:
            KitError: If that cannot be done now.
        """

    def wait_ready(
        self,
        probe: Probe,
        golden: Mapping[str, GoldenEvent | None],
        *,
        deadline: float,
        stopped: Callable[[], bool],
    ) -> None:
        """Wait until every model has given its golden answer.

        Args:
            probe: Asks the server.
            golden: Golden events by model; None for one that has none.
            deadline: On the monotonic clock.
            stopped: Says whether to give up waiting.

        Raises:
            LaunchError: With the cause, as soon as it is known, and at the deadline at last.
        """
        waiting = dict(golden)
        while waiting and not stopped():
            if not self.alive():
                self._fail(self._ended())
            if probe.server_ready():
                for model, event in list(waiting.items()):
                    result = smoke(probe, model, event)
                    if result.ok:
                        del waiting[model]
                    elif result.ready:
                        self._fail_answer(model, result.error or "")
            # Also when every model answers: the metrics port may be lost all the same.
            if is_hopeless(self.output()):
                self._fail("did not become ready")
            excess = self.outgrown()
            if excess is not None:
                raise LaunchError(
                    f"the server {excess}", "a higher --memory, or fewer --instances or --models"
                )
            if waiting and time.monotonic() > deadline:
                raise LaunchError(
                    f"not ready in time (waited for {', '.join(waiting)})",
                    f"more time (--timeout), or read the log: {self._plan.log}",
                )
            if waiting:
                time.sleep(_POLL_S)

    def _ended(self) -> str:
        """Return how it ended, as in ``ended with status 1``."""
        return "ended"

    def _fail_answer(self, model: str, error: str) -> NoReturn:
        known = diagnose(error)
        cause, remedy = error, f"check its weights and its environment; its log: {self._plan.log}"
        if known is not None:
            cause, remedy = known.cause, known.remedy
        raise LaunchError(f"model {model} is ready but answers wrongly: {cause}", remedy)

    def _fail(self, what: str) -> NoReturn:
        text = self.output()
        known = diagnose(text)
        if known is not None:
            raise LaunchError(known.cause, known.remedy)
        raise LaunchError(
            f"the server {what}; its last words: {last_words(text)[:300]}",
            f"read its log: {self._plan.log}",
        )
