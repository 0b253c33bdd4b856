"""The life of a deployment: start, watch, heal, stop.

Triton 24.10 does not replace a stub that died: it keeps reporting ready, and every request to that
instance fails. The supervisor notices within a fraction of a second and touches the model's staged
files; Triton, which polls them, reloads the model, and the surviving stubs serve until the new ones
are ready. A server that died is restarted, after growing pauses, and so is one that no longer
answers, or that cannot get a model loaded.
"""

import logging
import os
import platform
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

import psutil

from deploy.client.probe import Probe, smoke
from deploy.deployment.plan import Broken, LaunchPlan
from deploy.deployment.state import (
    DeploymentFolder,
    DeploymentState,
    Phase,
    ProcessId,
    reachable_host,
)
from deploy.engines.broken import BrokenModelsError
from deploy.engines.pulse import DEADLINE_S, Pulse
from deploy.engines.server import Note, Server, Stub, missing_stubs, start_until_ready
from deploy.host.errors import KitError, LaunchError
from deploy.host.failures import diagnose
from deploy.triton.site import with_callers
from deploy.triton.stage import request_reload
from numl_formats.golden import GoldenEvent

WATCH_S = 0.1
MEMORY_S = 0.5
HEAL_S = 30.0
RETIRE_S = 15.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
_LAST_WORDS = 2000  # a crash, and nothing of the start

log = logging.getLogger("numlkit.supervisor")


class Supervisor:
    """Runs one deployment until told to stop; a model without a reference event has None."""

    def __init__(
        self,
        folder: DeploymentFolder,
        plan: LaunchPlan,
        start: Callable[[LaunchPlan, Note], Server],
        probe: Probe,
        golden: Mapping[str, GoldenEvent | None],
    ) -> None:
        self._folder = folder
        self._plan = plan
        self._start_server = start
        self._probe = probe
        self._golden = dict(golden)
        self._stop = threading.Event()
        self._server: Server | None = None
        self._pulse: Pulse | None = None
        # Whether the state file is behind, for lack of room.
        self._unwritten = False
        self._look_due = 0.0
        self._serving: tuple[Stub, ...] = ()
        # Models whose staged files are gone, which cannot be reloaded.
        self._lost: set[str] = set()
        # Stubs no longer serving, with the deadline for finishing their work.
        self._retired: dict[ProcessId, float] = {}
        deployment, container = plan.deployment, plan.container
        self._state = DeploymentState(
            name=deployment.name,
            engine=plan.engine,
            node=platform.node(),
            host=reachable_host(deployment.listen),
            http_host=reachable_host(plan.http_listen),
            ports=plan.ports,
            models=tuple(plan.instances),
            broken=plan.broken,
            artefact=plan.artefact,
            log=plan.log,
            phase="starting",
            tls=deployment.tls,
            container=container.name if container is not None else None,
            image=container.named or None if container is not None else None,
            digest=container.digest or None if container is not None else None,
            release=container.release if container is not None else None,
            supervisor=ProcessId.of(os.getpid()),
        )

    def request_stop(self) -> None:
        self._stop.set()

    def run(self) -> int:
        try:
            self._start("starting")
            self._watch()
        except KitError as error:
            log.error("%s", error.cause)
            self._end()
            self._note("failed", cause=error.cause, remedy=error.remedy)
            return 1
        except BaseException:
            # Unforeseen: better no server than one that nobody watches or cleans up after.
            self._end()
            raise
        self._note("stopping")
        if not self._end():
            return 1
        self._folder.state_file.unlink(missing_ok=True)
        return 0

    def _start(self, phase: Phase) -> None:
        """Start a server and wait until it is ready; if asked to, without broken models."""
        while True:
            try:
                self._start_once(phase)
                return
            except BrokenModelsError as error:
                self._leave_out(error)

    def _leave_out(self, error: BrokenModelsError) -> None:
        """Serve without some models from now on, and without those that need them."""
        causes = {
            model: Broken(cause=why.cause, remedy=why.remedy) for model, why in error.causes.items()
        }
        repository = self._plan.repository
        for model in with_callers(repository, causes):
            cause = f"model {model} needs {', '.join(causes)}, of which not all can be served"
            causes.setdefault(model, Broken(cause=cause))
        left = tuple(model for model in self._state.models if model not in causes)
        if not left:
            raise error
        for model, why in causes.items():
            log.error("left out: %s", why.cause)
            shutil.rmtree(repository / model, ignore_errors=True)
            self._golden.pop(model, None)
        if self._server is not None:
            self._server.stop()
        self._state = self._state.model_copy(
            update={"models": left, "broken": {**self._state.broken, **causes}}
        )

    def _start_once(self, phase: Phase) -> None:
        """Start a server and wait until it is ready; the state names it as soon as possible."""
        self._end_pulse()
        started = time.monotonic()

        def start() -> Server:
            note = partial(self._note, phase)
            size = self._plan.log.stat().st_size if self._plan.log.exists() else 0
            note(server=None, log_start=size)
            self._serving, self._retired, self._lost = (), {}, set()
            self._server = self._start_server(self._plan, note)
            return self._server

        def wait(server: Server, patient: bool) -> None:
            server.wait_ready(
                self._probe,
                self._golden,
                deadline=started + self._plan.deployment.timeout,
                stopped=self._stop.is_set,
                patient=patient,
                keep_going=self._plan.deployment.keep_going,
            )

        start_until_ready(start, wait)
        if not self._stop.is_set():
            self._pulse = Pulse(replace(self._probe, timeout=DEADLINE_S).answers)
            seconds = round(time.monotonic() - started, 2)
            self._note("ready", seconds_to_ready=seconds, cause=None, remedy=None)
            log.info("ready in %.1f s", seconds)

    def _end_pulse(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()
        self._pulse = None

    def _end(self) -> bool:
        self._end_pulse()
        try:
            if self._server is not None:
                self._server.stop()
        except KitError as error:
            log.error("%s", error.cause)
            return False
        return True

    def _watch(self) -> None:
        """Replace what dies or outgrows its limit, until told to stop."""
        while not self._stop.wait(WATCH_S):
            server = self._server
            assert server is not None
            try:
                if not server.alive():
                    log.warning("the server died: %s", _why(server.output()))
                    self._replace()
                elif self._outgrown(server):
                    self._replace()
                elif self._pulse is not None and self._pulse.lost:
                    log.warning("the server does not answer: restarting it")
                    if self._plan.deployment.heal:
                        server.kill()
                    self._replace()
                else:
                    self._end_retired()
                    self._heal(server)
            except OSError as error:
                # A full disk or a missing file: it may be fixed by the next check.
                log.error("cannot heal: %s", error)
                self._stop.wait(FIRST_PAUSE_S)

    def _outgrown(self, server: Server) -> bool:
        """Twice a second, see whether a server outgrew its limit, and to a lost state file."""
        if time.monotonic() < self._look_due:
            return False
        self._look_due = time.monotonic() + MEMORY_S
        excess = server.outgrown()
        if excess is not None:
            log.warning("the server %s: restarting it", excess)
        if self._unwritten or not self._folder.state_file.exists():
            # Without it, commands would take the deployment for stopped.
            self._write_state()
        return excess is not None

    def _replace(self) -> None:
        if not self._plan.deployment.heal:
            cause = "the server died, hung or outgrew its memory limit, and healing is off"
            raise LaunchError(cause, f"read its log: {self._plan.log}")
        pause = FIRST_PAUSE_S
        while True:
            self._note("healing", restarts=self._state.restarts + 1)
            try:
                if self._server is not None:
                    self._server.stop()
                self._start("healing")
                return
            except (KitError, OSError) as error:
                # A full disk, for one, is no reason to give up: someone may make room.
                known = error if isinstance(error, KitError) else KitError(str(error))
                log.error("restart failed: %s", known.cause)
                self._note("healing", cause=known.cause, remedy=known.remedy)
            if self._stop.wait(pause):
                return
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _heal(self, server: Server) -> None:
        """Have models with dead stubs reloaded; restart a server that fails to reload them."""
        missing = self._missing(server)
        if not missing or not server.alive():
            return
        counted = ", ".join(f"{count} of model {model}" for model, count in missing.items())
        cause = f"dead stub processes: {counted}"
        if cause != self._state.cause:
            log.warning("%s", cause)
            self._note("healing" if self._plan.deployment.heal else "degraded", cause=cause)
        if not self._plan.deployment.heal:
            self._stop.wait(FIRST_PAUSE_S)
            return
        old = [stub for stub in server.living_stubs(stopped=True) if stub.model in missing]
        position = server.log_size()
        if gone := {model for model in missing if not (self._plan.repository / model).is_dir()}:
            self._lost |= gone
            self._note_lost()
            return  # the next check heals the others
        for model in missing:
            request_reload(self._plan.repository, model)
        # A load takes no longer than a start; twice that for a busy host.
        patience = max(HEAL_S, 2 * (self._state.seconds_to_ready or 0))
        deadline, loading, failing = time.monotonic() + patience, set(missing), set[str]()
        stuck = False
        while not self._stop.wait(WATCH_S) and server.alive():
            # While a model is loaded, its old and its new stubs may take more than is allowed.
            if stuck and self._outgrown(server):
                self._replace()
                return
            self._end_retired()
            said, position = server.lines_since(position)
            loaded = {model for model in loading if f"successfully loaded '{model}'" in said}
            loading -= loaded
            retired = (stub.process for stub in old if stub.model in loaded)
            self._retired |= dict.fromkeys(retired, time.monotonic() + RETIRE_S)
            if not loading and self._missing(server):
                return  # one of the new ones has died: the next check heals it
            if not loading and self._answers(missing):
                self._note_healed(missing)
                return
            if failed := {model for model in loading if f"failed to load '{model}'" in said}:
                stuck, failing = True, failing | failed
                if failing >= loading:
                    # Triton tries again at each poll. Of a load that hangs it says nothing.
                    deadline, failing = time.monotonic() + patience, set()
                known = diagnose(said)
                if known is not None and known.cause != self._state.cause:
                    log.error("not healed: %s", known.cause)
                    self._note("healing", cause=known.cause, remedy=known.remedy)
                if self._missing(server).keys() - loading:
                    return  # another model needs the same: the next check heals both
            elif time.monotonic() > deadline:
                if self._loaded_unsaid(server, missing, old):
                    self._note_healed(missing)
                    return
                # Triton waits forever for a stub that dies as soon as it is started.
                log.error("not healed in %.0f s: restarting the server", patience)
                self._replace()
                return

    def _answers(self, models: Iterable[str]) -> bool:
        return all(smoke(self._probe, model, self._golden[model]).ok for model in models)

    def _note_healed(self, models: Iterable[str]) -> None:
        self._note("ready", heals=self._state.heals + 1, cause=None, remedy=None)
        log.info("healed %s", ", ".join(models))
        if self._lost:
            self._note_lost()

    def _loaded_unsaid(self, server: Server, models: Iterable[str], old: list[Stub]) -> bool:
        """Return whether models are loaded although the log, on a full disk, does not say so.

        Their old stubs are ended first: they would answer for a load that never ends. If it does
        not, the server is restarted, and they end all the same.
        """
        self._retired |= dict.fromkeys((stub.process for stub in old), time.monotonic())
        if self._missing(server).keys() & set(models):
            return False
        self._end_retired()
        return self._answers(models)

    def _end_retired(self) -> None:
        """Kill stubs that have been replaced.

        Triton 24.10 does so itself, unless the stub died while handling a request: it then waits
        for that request forever, and the model's other old stubs stay.
        """
        for stub, until in list(self._retired.items()):
            process = stub.process()
            if process is None:
                del self._retired[stub]
            elif time.monotonic() >= until:
                with suppress(psutil.Error):
                    process.kill()  # which may take a moment: until then it serves nobody

    def _missing(self, server: Server) -> dict[str, int]:
        # Search all processes of the host only when a known one has exited.
        wanted = {m: n for m, n in self._plan.instances.items() if m in self._golden}
        self._serving = tuple(stub for stub in self._serving if self._serves(stub))
        if missing_stubs(self._serving, wanted):
            self._serving = tuple(filter(self._serves, server.living_stubs()))
        missing = missing_stubs(self._serving, wanted)
        return {model: count for model, count in missing.items() if model not in self._lost}

    def _note_lost(self) -> None:
        """Note the models whose staged files someone removed; the others are served and healed."""
        names, repository = ", ".join(sorted(self._lost)), self._plan.repository
        cause = f"model {names} cannot be reloaded: its files are gone from {repository}"
        remedy = "numlkit down, then numlkit up with the same file and flags"
        log.error("%s", cause)
        self._note("degraded", cause=cause, remedy=remedy)

    def _serves(self, stub: Stub) -> bool:
        return stub.process not in self._retired and stub.process.is_running()

    def _note(self, phase: Phase, **changes: object) -> None:
        self._state = self._state.model_copy(update={"phase": phase, **changes})
        self._write_state()

    def _write_state(self) -> None:
        try:
            self._folder.write_state(self._state)
        except OSError as error:
            # A full disk is no reason to stop a server that works.
            if not self._unwritten:
                log.error("the state file cannot be written: %s", error)
            self._unwritten = True
        else:
            self._unwritten = False


def _why(said: str) -> str:
    """Return why a server died, given its log: what the table of failures knows, or the end."""
    known = diagnose(said[-_LAST_WORDS:])
    if known is None:
        return f"the end of its log: {said[-300:]}"
    return f"{known.cause}; {known.remedy}"
