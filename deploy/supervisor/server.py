"""One tritonserver process: started, watched until it answers rightly, stopped, swept."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import psutil

from deploy.errors import LaunchError
from deploy.server.command import EXIT_TIMEOUT_S, KEY_PLACEHOLDER
from deploy.server.failures import diagnose, is_hopeless, last_words
from deploy.server.golden import GoldenEvent
from deploy.server.probe import Probe, smoke
from deploy.state import LaunchPlan, ProcessId, Surroundings
from deploy.supervisor.leftovers import (
    look_around,
    scratch_folders,
    scratch_since,
    sweep,
    taking_turns,
)
from deploy.supervisor.stubs import Stub, living_stubs

_POLL_S = 0.1
_SCRATCH_WAIT_S = 5.0


class Server:
    """A tritonserver that runs, or ran, after a plan.

    Args:
        plan: What to start.
        record: Is called before the start, with None, and with the process as soon as it runs;
            the second argument is what there was before.

    Attributes:
        identity: The process.
        scratch: Its scratch folders; empty if they cannot be told from another's.
    """

    def __init__(
        self, plan: LaunchPlan, record: Callable[[ProcessId | None, Surroundings], None]
    ) -> None:
        self._plan = plan
        self._offset = plan.log.stat().st_size if plan.log.exists() else 0
        self._stubs: set[ProcessId] = set()
        self.scratch: frozenset[Path] = frozenset()
        key = secrets.token_hex(16)
        # The backend names its scratch folder only by making it: starts take turns, so that a
        # new folder is known to be this server's.
        with taking_turns():
            self._before = look_around()
            record(None, self._before)
            with plan.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [argument.replace(KEY_PLACEHOLDER, key) for argument in plan.arguments],
                    env=plan.variables,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.identity = ProcessId.of(self._process.pid)
            record(self.identity, self._before)
            deadline = time.monotonic() + _SCRATCH_WAIT_S
            while time.monotonic() < deadline and self.alive():
                if scratch_folders() - set(self._before.folders):
                    self.scratch = scratch_since(self._before, self.identity)
                    break
                time.sleep(0.02)

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    def output(self) -> str:
        """Return what it has said since its start."""
        with self._plan.log.open("rb") as log:
            log.seek(self._offset)
            return log.read().decode(errors="replace")

    def living_stubs(self) -> tuple[Stub, ...]:
        """Return its living stubs; each is remembered, to be swept with the server."""
        if not self.alive():
            return ()
        stubs = living_stubs(psutil.Process(self._process.pid))
        self._stubs.update(stub.process for stub in stubs)
        return stubs

    def wait_ready(
        self,
        probe: Probe,
        golden: Mapping[str, GoldenEvent],
        *,
        deadline: float,
        stopped: Callable[[], bool],
    ) -> None:
        """Wait until every model has given its golden answer.

        Args:
            probe: Asks the server.
            golden: Golden events by model.
            deadline: On the monotonic clock.
            stopped: Says whether to give up waiting.

        Raises:
            LaunchError: With the cause, as soon as it is known, and at the deadline at last.
        """
        waiting = dict(golden)
        while waiting and not stopped():
            if not self.alive():
                self._fail(f"ended with status {self._process.returncode}")
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
            if waiting and time.monotonic() > deadline:
                raise LaunchError(
                    f"not ready in time (waited for {', '.join(waiting)})",
                    f"more time (--timeout), or read the log: {self._plan.log}",
                )
            if waiting:
                time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop it, by force if it does not follow, and remove what it leaves behind."""
        self.living_stubs()
        if self.alive():
            self._process.terminate()
            try:
                self._process.wait(EXIT_TIMEOUT_S + 5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if not self.scratch:
            with taking_turns():
                self.scratch = scratch_since(self._before, self.identity)
        sweep(prefix=self._plan.shm_prefix, scratch=self.scratch, processes=self._stubs)

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
