"""A tritonserver and its stubs: watched until it answers correctly, stopped, cleaned up after."""

import logging
import os
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, TypeVar

import psutil

from deploy.client.probe import Probe, smoke
from deploy.deployment.plan import LaunchPlan
from deploy.deployment.state import ProcessId
from deploy.engines.broken import NOT_LOADED, BrokenModelsError, tell_apart
from deploy.host.errors import LaunchError
from deploy.host.failures import diagnose, is_hopeless, last_words
from deploy.triton.stub import STUB
from numl_formats.golden import GoldenEvent

_POLL_S = 0.1
_START_TIMEOUT_S = 20.0
# A starting server that logs nothing for this long, and uses less processor time, has stopped.
_STILL_S, _STILL_CPU_S = 20.0, 0.3
STOP_TIMEOUT_S = 30.0
# How causes begin that concern one model, and do not say which; others concern the host.
_OF_A_MODEL = ("the execution environment", "a packed execution environment", "the stub", "a model")
_ABORTED = re.compile(r"boost::interprocess::lock_exception")  # at random, on a busy host
_GIVEN_UP = re.compile(
    rf"{_ABORTED.pattern}|failed to load .*Stub process '[^']*' is not healthy", re.DOTALL
)

log = logging.getLogger("numlkit.supervisor")


class GivenUpError(LaunchError):
    """A server will not become ready, for no fault of the models: a second one may.

    On a busy host Triton 2.51 gives up a stub that says nothing for five seconds, and then ends or
    waits for the stub's end for ever; or it crashes.
    """


@dataclass(frozen=True)
class Stub:
    """A process of Triton's Python backend; each instance of a Python model has one."""

    model: str
    process: ProcessId


def living_stubs(server: psutil.Process, *, stopped: bool = False) -> tuple[Stub, ...]:
    """Return the live stubs of a server.

    Args:
        stopped: Include those stopped by a signal: they are alive but do not answer.
    """
    stubs, children = [], list[psutil.Process]()
    with suppress(psutil.NoSuchProcess):
        children = server.children()
    for child in children:
        with suppress(psutil.Error):
            # STUB .../MODEL/VERSION/model.py REGION ...; a zombie's command line is empty.
            command = child.cmdline()
            if len(command) < 3 or Path(command[0]).name != STUB:
                continue
            if stopped or child.status() != psutil.STATUS_STOPPED:
                stubs.append(Stub(Path(command[1]).parents[1].name, ProcessId.of(child.pid)))
    return tuple(stubs)


def missing_stubs(stubs: Iterable[Stub], wanted: Mapping[str, int]) -> dict[str, int]:
    alive = Counter(stub.model for stub in stubs)
    return {model: n - alive[model] for model, n in wanted.items() if alive[model] < n}


def end_process(process: psutil.Process) -> None:
    """Terminate a process and wait for it; kill it if it does not exit.

    Raises:
        LaunchError: If it is another user's, or does not exit.
    """
    try:
        for end in (process.terminate, process.kill):
            end()
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while time.monotonic() < deadline:
                # A zombie has exited, even if its parent never asks for its status.
                if process.status() == psutil.STATUS_ZOMBIE:
                    return
                time.sleep(0.02)
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        remedy = "run the command as the user who started the deployment"
        raise LaunchError(f"process {process.pid} belongs to another user", remedy) from None
    cause = f"process {process.pid} does not exit, although it was killed"
    remedy = "it waits for a disk or a device: run the command again once that answers"
    raise LaunchError(cause, remedy)


def servers(
    identity: str,
    *,
    owners: Collection[int] | None = None,
    among: Iterable[psutil.Process] | None = None,
    starting: bool = False,
) -> Iterator[psutil.Process]:
    """Yield the servers that were started with ``--id=identity``.

    Args:
        owners: The uids that may own it, since other users can read the identity and give it to
            a process of their own; None: the calling user's.
        among: The processes of a container, which may have any uid; None: all processes.
        starting: Also yield a process that is about to become such a server.
    """
    owners = owners or (os.getuid(),)
    for process in psutil.process_iter() if among is None else among:
        with suppress(psutil.Error, ProcessLookupError):
            command = process.cmdline()
            if f"--id={identity}" not in command:
                continue
            # A program that starts a server also has the server's whole command line.
            if not starting and not command[0].endswith("/tritonserver"):
                continue
            if among is not None or process.uids().real in owners:
                yield process


def await_server(
    find: Callable[[], psutil.Process | None], may_come: Callable[[], bool]
) -> ProcessId | None:
    """Wait for a server's process; return it, or None if it does not appear."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        going_on = may_come()
        process = find()
        if process is not None:
            with suppress(psutil.NoSuchProcess):
                return ProcessId.of(process.pid)
        elif not going_on:
            break
        time.sleep(0.05)
    return None


# Writes fields of DeploymentState, as soon as they are known.
Note = Callable[..., None]


class Server(ABC):
    """A tritonserver that was started from a plan.

    Attributes:
        identity: Its process on this host, also when it runs in a container; None before it runs.
    """

    def __init__(self, plan: LaunchPlan, note: Note) -> None:
        self._plan, self._note = plan, note
        self._offset = self.log_size()
        self.identity: ProcessId | None = None

    def alive(self) -> bool:
        return self._process() is not None

    def log_size(self) -> int:
        return self._plan.log.stat().st_size if self._plan.log.exists() else 0

    def output(self) -> str:
        return self._logged(self._offset).decode(errors="replace")

    def lines_since(self, position: int) -> tuple[str, int]:
        """Return the complete log lines from a byte position on, and the position after them."""
        position = min(position, self.log_size())  # it may have been truncated
        said = self._logged(position)
        whole = said[: said.rfind(b"\n") + 1]
        return whole.decode(errors="replace"), position + len(whole)

    def _logged(self, position: int) -> bytes:
        # Someone may have removed it.
        with suppress(FileNotFoundError), self._plan.log.open("rb") as log:
            log.seek(position)
            return log.read()
        return b""

    def living_stubs(self, *, stopped: bool = False) -> tuple[Stub, ...]:
        process = self._process()
        return living_stubs(process, stopped=stopped) if process is not None else ()

    def outgrown(self) -> str | None:
        """Return in words by how much it and its stubs exceed the memory limit, or None."""
        limit = self._plan.deployment.memory
        if limit is None:
            return None
        memory = self._used(lambda process: process.memory_full_info().pss)
        if memory <= limit:
            return None
        return f"uses {memory / 1e6:.0f} MB; its memory limit (--memory) is {limit / 1e6:.0f} MB"

    def kill(self) -> None:
        """Kill its process at once: one that hangs does not stop when it is asked to."""
        process = self._process()
        if process is not None:
            with suppress(psutil.Error):  # another user's: its engine ends it
                process.kill()

    @abstractmethod
    def stop(self) -> None:
        """Stop it, by force if need be, and remove what it leaves behind."""

    def wait_ready(
        self,
        probe: Probe,
        golden: Mapping[str, GoldenEvent | None],
        *,
        deadline: float,
        stopped: Callable[[], bool],
        patient: bool = True,
        keep_going: bool = False,
    ) -> None:
        """Wait until every model gives its reference output; one that has none need only be ready.

        The deadline is on the monotonic clock; ``stopped`` says whether to give up waiting.

        Raises:
            BrokenModelsError: With ``keep_going``, where only some models are at fault.
            GivenUpError: It will not become ready, and another server may; with ``patient``, only
                if it crashed at random.
            LaunchError: With the cause, as soon as it is known, at the latest at the deadline.
        """
        waiting, read_log = dict(golden), f"read its log: {self._plan.log}"
        done, since = self._work(), time.monotonic()
        while waiting and not stopped():
            if not self.alive() and _ABORTED.search(self.output()):
                self._fail(self._ended(), GivenUpError)
            # With a stub that was given up, it is started once more first.
            if keep_going and (patient or not _GIVEN_UP.search(self.output())):
                late = time.monotonic() > deadline
                found = tell_apart(self.output(), probe, waiting, alive=self.alive(), late=late)
                if found and self.outgrown() is None:
                    raise BrokenModelsError(found)
            if not self.alive():
                # Where it goes on without models, no fault of theirs ends it, whatever it says.
                if not patient and keep_going:
                    raise GivenUpError(f"the server {self._ended()} while it started", read_log)
                self._fail(self._ended())
            if probe.server_ready():
                for model, event in list(waiting.items()):
                    result = smoke(probe, model, event)
                    if result.ok:
                        del waiting[model]
                    elif result.late:
                        # The first answer takes longest, and more so on a busy host.
                        left = max(deadline - time.monotonic(), probe.timeout)
                        probe = replace(probe, timeout=min(2 * probe.timeout, left))
                    elif result.ready:
                        # It may be ending for a reason of its own, and answer nobody.
                        if not self.alive() or is_hopeless(self.output(), for_all=keep_going):
                            self._fail("did not become ready")
                        self._fail_answer(model, result.error or "")
            elif not patient and time.monotonic() - since > _STILL_S:
                before, (done, since) = done, (self._work(), time.monotonic())
                if before[0] == done[0] and 0 < done[1] < before[1] + _STILL_CPU_S:
                    raise GivenUpError("the server stopped starting", read_log)
            if not patient and waiting and _GIVEN_UP.search(self.output()):
                raise GivenUpError("Triton gave up a model's process", f"see {self._plan.log}")
            # Also when every model answers: the metrics port may have been lost all the same.
            if is_hopeless(self.output(), for_all=keep_going):
                self._fail("did not become ready")
            excess = self.outgrown()
            if excess is not None:
                remedy = "raise --memory, or serve fewer --instances or --models"
                raise LaunchError(f"the server {excess}", remedy)
            if waiting and time.monotonic() > deadline:
                cause = f"not ready in time (waited for {', '.join(waiting)})"
                remedy = f"allow more time (--timeout), or read the log: {self._plan.log}"
                raise LaunchError(cause, remedy)
            if waiting:
                time.sleep(_POLL_S)

    def _work(self) -> tuple[int, float]:
        """Return the bytes that it has logged and the processor time that it has used so far."""
        return self.log_size(), self._used(lambda process: sum(process.cpu_times()[:2]))

    def _used(self, what: Callable[[psutil.Process], float]) -> float:
        """Return how much it and its stubs use, or have used, of something."""
        total, server = 0.0, self._process()
        with suppress(psutil.NoSuchProcess):
            for process in (server, *server.children(recursive=True)) if server is not None else ():
                with suppress(psutil.Error):
                    total += what(process)
        return total

    def _process(self) -> psutil.Process | None:
        return self.identity.process() if self.identity is not None else None

    def _ended(self) -> str:
        """Return how it ended, as in ``exited with status 1``."""
        return "ended"

    def _fail_answer(self, model: str, error: str) -> NoReturn:
        remedy = f"check its weights and its environment; its log: {self._plan.log}"
        why = diagnose(error) or LaunchError(error, remedy)
        raise LaunchError(
            f"model {model} is ready but gives wrong answers: {why.cause}", why.remedy
        )

    def _fail(self, what: str, kind: type[LaunchError] = LaunchError) -> NoReturn:
        text = self.output()
        if not text.strip():
            remedy = "dmesg may say what killed it: too little memory, or a damaged .sif or disk"
            raise LaunchError(f"the server {what} and logged nothing", remedy)
        found = diagnose(text) or LaunchError(
            f"the server {what}; the last line of its log: {last_words(text)[:300]}",
            f"read its log: {self._plan.log}",
        )
        broken = NOT_LOADED.search(text)
        if broken is not None and found.cause.startswith(_OF_A_MODEL):
            raise kind(f"model {broken['model']}: {found.cause}", found.remedy)
        raise kind(found.cause, found.remedy)


S = TypeVar("S", bound=Server)


def start_until_ready(start: Callable[[], S], wait: Callable[[S, bool], None]) -> S:
    """Start a server and wait until it is ready; start it up to twice more where that may help.

    Args:
        wait: Waits for it; its second argument is ``patient`` of ``Server.wait_ready``.
    """
    for starts_left in (2, 1, 0):
        server = start()
        try:
            wait(server, starts_left < 2)
            break
        except GivenUpError as error:
            if not starts_left:
                raise
            log.warning("%s: starting it once more", error.cause)
            server.kill()
            server.stop()
    return server
