"""What every engine does, and the part of a launch that is the same for all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress

import psutil

from deploy.console import Say
from deploy.deployment import Deployment, EngineName
from deploy.errors import LaunchError
from deploy.paths import CHECKOUT
from deploy.plan import LaunchPlan
from deploy.repository.stage import StagedModel, stage
from deploy.server.admin_key import make_key
from deploy.server.command import LAUNCHER
from deploy.state import DeploymentFolder, DeploymentState, ProcessId

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 30.0


class Engine(ABC):
    """Starts and stops servers in one way.

    Attributes:
        name: As in ``--engine NAME``.
    """

    name: EngineName

    @abstractmethod
    def plan(self, *, deployment: Deployment) -> LaunchPlan:
        """Return what a launch would do. Nothing is made or changed.

        Args:
            deployment: What is wanted.

        Raises:
            KitError: If it cannot be launched as described.
        """

    @abstractmethod
    def command(self, plan: LaunchPlan) -> Sequence[str]:
        """Return the words of a command that starts the planned server by hand.

        Args:
            plan: From :meth:`plan`.
        """

    @abstractmethod
    def artefact(self, *, deployment: Deployment) -> str:
        """Return a digest of all that a launch would run and serve.

        Args:
            deployment: What is wanted.

        Raises:
            KitError: If a file of it is missing.
        """

    @abstractmethod
    def prepare(self, *, deployment: Deployment, say: Say) -> None:
        """Make and check whatever the launch needs and lacks.

        Args:
            deployment: What is wanted.
            say: Is told what happens.

        Raises:
            KitError: If something cannot be had or does not pass its checks.
        """

    @abstractmethod
    def models(self, *, deployment: Deployment) -> tuple[StagedModel, ...]:
        """Return the models, configured for a launch, after :meth:`prepare`.

        Args:
            deployment: What is wanted.

        Raises:
            RepositoryError: Naming the model, the file and what is wrong.
        """

    @abstractmethod
    def clear(self, *, folder: DeploymentFolder, state: DeploymentState) -> None:
        """End a server that has no supervisor, and remove what it leaves behind.

        Args:
            folder: The deployment's folder.
            state: Its state.

        Raises:
            KitError: If something of it cannot be stopped.
        """

    def lay_out(self, *, deployment: Deployment, folder: DeploymentFolder) -> None:
        """Put into the deployment's folder what a server that is started by hand finds there.

        Args:
            deployment: Prepared.
            folder: Its folder; nothing of it runs.
        """
        stage(self.models(deployment=deployment), folder.repository)
        make_key(folder.key_file)

    def launch(self, *, plan: LaunchPlan, say: Say) -> DeploymentState:
        """Start supervisor and server, and wait until every model answers rightly.

        Args:
            plan: From :meth:`plan`, after :meth:`prepare`.
            say: Is told what happens.

        Returns:
            The state of the ready deployment.

        Raises:
            LaunchError: If it does not become ready; nothing of it is left running.
        """
        deployment = plan.deployment
        folder = DeploymentFolder(deployment.name)
        folder.path.mkdir(parents=True, exist_ok=True)
        models = self.models(deployment=deployment)
        stage(models, plan.repository)
        folder.state_file.unlink(missing_ok=True)
        folder.log.write_bytes(b"")
        folder.write_plan(plan)
        say(f"starting {describe_instances(plan)}")
        with folder.supervisor_log.open("wb") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "deploy.supervisor", str(folder.path)],
                cwd="/",
                env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            return _await_ready(folder, supervisor, deployment.timeout)
        except BaseException:
            if supervisor.poll() is None:
                end_process(psutil.Process(supervisor.pid))
            # A supervisor that was killed has left its server behind.
            state = folder.state()
            if state is not None:
                self.stop(folder=folder, state=state)
            _forget(folder)
            raise

    def stop(self, *, folder: DeploymentFolder, state: DeploymentState) -> None:
        """Let the supervisor stop the server; do its work if it is gone.

        Args:
            folder: The deployment's folder.
            state: Its state.

        Raises:
            KitError: If something of it cannot be stopped.
        """
        supervisor = state.supervisor.process()
        if supervisor is not None:
            end_process(supervisor)
            state = folder.state() or state
        self.clear(folder=folder, state=state)
        _forget(folder)


def describe_instances(plan: LaunchPlan) -> str:
    """Return which models are served by how many processes, in a few words."""
    counted = [f"{model} ({count})" for model, count in plan.instances.items()]
    return f"{', '.join(counted)}: processes of each model in brackets"


def end_process(process: psutil.Process) -> None:
    """Ask a process to end and wait for it; kill it if it does not.

    Raises:
        LaunchError: If it is another user's.
    """
    try:
        process.terminate()
        process.wait(_STOP_TIMEOUT_S)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(_STOP_TIMEOUT_S)
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        raise LaunchError(
            f"process {process.pid} may not be ended: it is another user's",
            "give the command as the user who started the deployment",
        ) from None


def process_with_identity(
    identity: str, owners: Collection[int] | None = None
) -> psutil.Process | None:
    """Return the server that was told to call itself ``identity``, or None.

    Args:
        identity: What it was told. Others can read it, and call a process of theirs so.
        owners: Numbers of the users whose process it may be; None: the calling user's.
    """
    for process in _mentioning(identity, psutil.process_iter(), owners or (os.getuid(),)):
        return process
    return None


def server_below(first: psutil.Process, identity: str) -> psutil.Process | None:
    """Return the server of this identity among a process and its children, or None.

    Args:
        first: As the first one of a container: its user may have any number on the host.
        identity: What the server was told to call itself.
    """
    try:
        family = (first, *first.children())
    except psutil.Error:
        return None
    return next(_mentioning(identity, family, None), None)


def await_server(
    find: Callable[[], psutil.Process | None], may_come: Callable[[], bool]
) -> ProcessId | None:
    """Wait for a server's process.

    Args:
        find: Returns it, once it is there.
        may_come: Says whether to wait on.

    Returns:
        The process, or None if it does not come.
    """
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


def is_starting(identity: str) -> bool:
    """Return whether a process of this user is to become the server of this identity."""
    everyone = psutil.process_iter()
    return any(True for _ in _mentioning(identity, everyone, (os.getuid(),), becomes=True))


def _mentioning(
    identity: str,
    processes: Iterable[psutil.Process],
    owners: Collection[int] | None,
    *,
    becomes: bool = False,
) -> Iterator[psutil.Process]:
    """Yield the servers of this identity; with ``becomes`` what is to start one, too."""
    for process in processes:
        with suppress(psutil.Error, ProcessLookupError):
            command = process.cmdline()
            if f"--id={identity}" not in command:
                continue
            if owners is not None and process.uids().real not in owners:
                continue
            # Whoever starts a server has its whole command line, too. Its launcher on this host,
            # which begins a session of its own, is about to become it.
            launched = str(LAUNCHER) in command and os.getsid(process.pid) == process.pid
            if becomes or launched or command[0].endswith("/tritonserver"):
                yield process


def _await_ready(
    folder: DeploymentFolder, supervisor: subprocess.Popen[bytes], timeout: float
) -> DeploymentState:
    # The supervisor keeps the deadline; this one is for a supervisor that does not run.
    deadline = time.monotonic() + timeout + _STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        state = folder.state()
        if state is not None and state.phase == "ready":
            return state
        if state is not None and state.phase == "failed":
            raise LaunchError(state.cause or "the server failed", state.remedy)
        if supervisor.poll() is not None:
            state = folder.state()
            if state is not None and state.phase == "failed":
                raise LaunchError(state.cause or "the server failed", state.remedy)
            if state is None and supervisor.returncode == 0:
                raise LaunchError("stopped by another command while it was starting")
            words = folder.supervisor_log.read_text(errors="replace").strip().splitlines()
            raise LaunchError(
                f"the supervisor ended: {words[-1] if words else 'it said nothing'}",
                f"read its log: {folder.supervisor_log}",
            )
        time.sleep(0.05)
    raise LaunchError("the supervisor does not answer", f"read its log: {folder.supervisor_log}")


def _forget(folder: DeploymentFolder) -> None:
    """Remove a deployment's state and staged repository; its logs stay."""
    folder.state_file.unlink(missing_ok=True)
    folder.plan_file.unlink(missing_ok=True)
    folder.key_file.unlink(missing_ok=True)
    shutil.rmtree(folder.repository, ignore_errors=True)
