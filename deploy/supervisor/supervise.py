"""The life of a deployment: start, watch, heal, stop.

Triton 24.10 does not replace a stub that died: it goes on saying that it is ready, and
every request to that instance fails. The supervisor notices within a second and has the server
load the model anew, through its admin endpoints. The living stubs serve until the new ones are
ready. A server that died is started again, with a growing pause; so is one with dead stubs whose
admin endpoints are closed, since its key could not be hidden.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import suppress
from typing import TypeAlias

import psutil

from deploy.client.admin import Admin, AdminClosedError, AdminError
from deploy.errors import KitError, LaunchError
from deploy.plan import LaunchPlan
from deploy.repository.stage import BYTECODE
from deploy.server.golden import GoldenEvent
from deploy.server.probe import Probe, smoke
from deploy.state import (
    DeploymentFolder,
    DeploymentState,
    Phase,
    ProcessId,
    reachable_host,
)
from deploy.supervisor.server import Note, Server
from deploy.supervisor.stubs import missing_stubs

WATCH_S = 0.5
HEAL_DEADLINE_S = 30.0
HEAL_PAUSE_S = 5.0
RETIRE_S = 15.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0

StartServer: TypeAlias = Callable[[LaunchPlan, Note], Server]

log = logging.getLogger("numlkit.supervisor")


class Supervisor:
    """Runs one deployment until told to stop.

    Args:
        folder: The deployment's folder; its state file is kept up to date.
        plan: What to run.
        start: Starts a server after the plan.
        probe: Asks the server.
        admin_with: Returns how a server's admin endpoints are asked, with its key.
        golden: Golden events by model; None for one that has none.
    """

    def __init__(
        self,
        folder: DeploymentFolder,
        plan: LaunchPlan,
        start: StartServer,
        probe: Probe,
        admin_with: Callable[[str], Admin],
        golden: Mapping[str, GoldenEvent | None],
    ) -> None:
        self._folder = folder
        self._plan = plan
        self._start_server = start
        self._probe = probe
        self._admin_with = admin_with
        self._admin: Admin | None = None
        self._golden = golden
        self._stop = threading.Event()
        # Stubs that serve no more, with the time until which they may finish what they do.
        self._retired: dict[ProcessId, float] = {}
        deployment = plan.deployment
        self._state = DeploymentState(
            name=deployment.name,
            engine=plan.engine,
            node=platform.node(),
            host=reachable_host(deployment.listen),
            ports=plan.ports,
            models=deployment.models,
            artefact=plan.artefact,
            log=plan.log,
            phase="starting",
            tls=deployment.tls,
            container=plan.container.name if plan.container is not None else None,
            supervisor=ProcessId.of(os.getpid()),
        )

    def request_stop(self) -> None:
        """Ask it to stop; it does so at the next look."""
        self._stop.set()

    def run(self) -> int:
        """Run the deployment; return the exit status."""
        server: Server | None = None
        try:
            server = self._start("starting")
            self._until_ready(server, self._plan.deployment.timeout)
            while not self._stop.wait(WATCH_S):
                try:
                    if not server.alive():
                        log.warning("the server died; last words: %s", server.output()[-300:])
                        server = self._replace(server)
                    elif (excess := server.outgrown()) is not None:
                        log.warning("the server %s: it is started anew", excess)
                        server = self._replace(server)
                    else:
                        self._end_retired()
                        server = self._heal_stubs(server)
                except OSError as error:
                    # A full disk or a missing file: the next look may find it mended.
                    log.error("cannot heal: %s", error)
                    self._stop.wait(FIRST_PAUSE_S)
        except KitError as error:
            log.error("%s", error.cause)
            self._end(server)
            self._note("failed", cause=error.cause, remedy=error.remedy)
            return 1
        except BaseException:
            # Not foreseen: better no server than one that nobody watches or sweeps up after.
            self._end(server)
            raise
        self._note("stopping")
        if not self._end(server):
            return 1
        self._folder.state_file.unlink(missing_ok=True)
        return 0

    def _end(self, server: Server | None) -> bool:
        """Stop the server; return whether that could be done."""
        try:
            if server is not None:
                server.stop()
        except KitError as error:
            log.error("%s", error.cause)
            return False
        return True

    def _start(self, phase: Phase) -> Server:
        """Start a server; the state names it, and what it makes, as early as can be."""

        def note(**changes: object) -> None:
            self._note(phase, **changes)

        log = self._plan.log
        note(server=None, log_start=log.stat().st_size if log.exists() else 0)
        return self._start_server(self._plan, note)

    def _until_ready(self, server: Server, timeout: float) -> None:
        started = time.monotonic()
        server.wait_ready(
            self._probe,
            self._golden,
            deadline=started + timeout,
            stopped=self._stop.is_set,
        )
        if not self._stop.is_set():
            self._admin = self._admin_of(server)
            seconds = round(time.monotonic() - started, 2)
            self._note("ready", seconds_to_ready=seconds, cause=None, remedy=None)
            log.info("ready in %.1f s", seconds)

    def _admin_of(self, server: Server) -> Admin | None:
        key = server.key()
        return self._admin_with(key) if key is not None else None

    def _replace(self, dead: Server) -> Server:
        """Start a new server in a dead one's place, again and again if need be."""
        if not self._plan.deployment.heal:
            raise LaunchError(
                "the server died or outgrew its memory limit, and healing is off",
                f"read its log: {self._plan.log}",
            )
        server, pause = dead, FIRST_PAUSE_S
        while True:
            self._note("healing", restarts=self._state.restarts + 1)
            try:
                server.stop()
                server = self._start("healing")
                self._until_ready(server, self._plan.deployment.timeout)
                return server
            except (KitError, OSError) as error:
                # A full disk, for one, is no reason to give up: it may be mended meanwhile.
                known = error if isinstance(error, KitError) else KitError(str(error))
                log.error("restart failed: %s", known.cause)
                self._note("healing", cause=known.cause, remedy=known.remedy)
            if self._stop.wait(pause):
                return server
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _heal_stubs(self, server: Server) -> Server:
        """Have models with dead stubs loaded anew; return the server that runs then."""
        missing = self._missing(server)
        if not missing or not server.alive():
            return server
        cause = describe_missing(missing)
        if cause != self._state.cause:
            log.warning("%s", cause)
            self._note("healing" if self._plan.deployment.heal else "degraded", cause=cause)
        if not self._plan.deployment.heal:
            return server
        before = [stub for stub in server.living_stubs() if stub.model in missing]
        loaded, failure = self._reload(server, missing)
        retired = {stub.process for stub in before if stub.model in loaded}
        self._retired |= dict.fromkeys(retired, time.monotonic() + RETIRE_S)
        if isinstance(failure, AdminClosedError):
            log.warning("%s: it is started anew", failure.cause)
            return self._replace(server)
        if isinstance(failure, AdminError):
            log.error("not healed: %s", failure.cause)
            self._stop.wait(HEAL_PAUSE_S)
            return server
        if failure is not None:
            raise failure
        deadline = time.monotonic() + HEAL_DEADLINE_S
        while not self._stop.wait(0.1) and server.alive():
            if all(self._is_renewed(server, model, retired) for model in missing):
                self._note("ready", heals=self._state.heals + 1, cause=None, remedy=None)
                log.info("healed %s", ", ".join(missing))
                return server
            if time.monotonic() > deadline:
                log.error("not healed in %.0f s: trying again", HEAL_DEADLINE_S)
                break
        return server

    def _reload(
        self, server: Server, models: Iterable[str]
    ) -> tuple[Collection[str], AdminError | OSError | None]:
        """Have models loaded anew.

        Returns:
            Those that are, and what kept the others from it: the server, or files that cannot be
            touched.
        """
        self._admin = self._admin or self._admin_of(server)
        if self._admin is None:
            return (), AdminClosedError("nobody has a key to the server's admin endpoints")
        admin, loaded, failed = self._admin, list[str](), list[AdminError | OSError]()

        def load() -> None:
            try:
                for model in models:
                    if self._stop.is_set() or not server.alive():
                        return
                    # A model whose files are as they were is taken to be loaded already.
                    for file in (self._plan.repository / model).rglob(BYTECODE):
                        file.touch()
                    admin.load(model)
                    loaded.append(model)
            except (AdminError, OSError) as error:
                failed.append(error)

        # The answer comes when the model is loaded. A stop is not to wait for that.
        loading = threading.Thread(target=load, daemon=True)
        loading.start()
        while loading.is_alive() and server.alive() and not self._stop.is_set():
            loading.join(0.1)
        return tuple(loaded), failed[0] if failed else None

    def _end_retired(self) -> None:
        """End the stubs that were replaced.

        Triton 24.10 does so itself, but not if the stub that died was at work on a request: it
        takes that request to be under way for ever, and the model's other stubs stay.
        """
        for stub, until in list(self._retired.items()):
            process = stub.process()
            if process is not None and time.monotonic() < until:
                continue
            del self._retired[stub]
            if process is not None:
                with suppress(psutil.Error):
                    process.kill()

    def _missing(self, server: Server) -> dict[str, int]:
        stubs = (stub for stub in server.living_stubs() if stub.process not in self._retired)
        return missing_stubs(stubs, self._plan.instances)

    def _is_renewed(self, server: Server, model: str, before: Set[ProcessId]) -> bool:
        # By identity: a process's start time and the clock may disagree by seconds.
        stubs = [stub for stub in server.living_stubs() if stub.model == model]
        if sum(stub.process not in before for stub in stubs) < self._plan.instances[model]:
            return False
        return smoke(self._probe, model, self._golden[model]).ok

    def _note(self, phase: Phase, **changes: object) -> None:
        self._state = self._state.model_copy(update={"phase": phase, **changes})
        try:
            self._folder.write_state(self._state)
        except OSError as error:
            # A full disk is no reason to stop a server that works.
            log.error("the state file cannot be written: %s", error)


def describe_missing(missing: Mapping[str, int]) -> str:
    """Return, in one line, which models lack stubs."""
    counted = ", ".join(f"{count} of model {model}" for model, count in missing.items())
    return f"dead stub processes: {counted}"
