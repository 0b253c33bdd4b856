"""A tritonserver that is a process of this host, without a container."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from deploy.plan import LaunchPlan
from deploy.server.admin_key import make_key
from deploy.server.command import EXIT_TIMEOUT_S
from deploy.state import ProcessId
from deploy.supervisor.leftovers import (
    look_around,
    scratch_folders,
    scratch_since,
    sweep,
    taking_turns,
)
from deploy.supervisor.server import Note, Server

_SCRATCH_WAIT_S = 5.0


class ProcessServer(Server):
    """A child process of the supervisor.

    Args:
        plan: What to start.
        note: Is told what there was before, the process, and its scratch folders.

    Attributes:
        scratch: Its scratch folders; empty if they cannot be told from another's.
    """

    def __init__(self, plan: LaunchPlan, note: Note) -> None:
        super().__init__(plan)
        self._key = make_key(plan.key_file)
        self.scratch: frozenset[Path] = frozenset()
        # The backend names its scratch folder only by making it: starts take turns, so that a
        # new folder is known to be this server's.
        with taking_turns():
            self._before = look_around()
            note(server=None, scratch=(), before=self._before)
            with plan.log.open("ab") as log:
                self._process = subprocess.Popen(
                    plan.arguments,
                    env=plan.variables,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.identity = ProcessId.of(self._process.pid)
            note(server=self.identity)
            deadline = time.monotonic() + _SCRATCH_WAIT_S
            while time.monotonic() < deadline and self.alive():
                if scratch_folders() - set(self._before.folders):
                    self.scratch = scratch_since(self._before, self.identity)
                    break
                time.sleep(0.02)
        if self.scratch:
            note(scratch=tuple(sorted(self.scratch)), before=None)

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    def key(self) -> str | None:
        """Return the key that it was given."""
        return self._key

    def stop(self) -> None:
        """Stop it, by force if it does not follow, and remove what it leaves behind."""
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
        sweep(prefix=self._plan.shm_prefix, scratch=self.scratch)

    def _ended(self) -> str:
        return f"ended with status {self._process.returncode}"
