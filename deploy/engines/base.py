"""What every engine does, and the part of a launch that is the same for all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import psutil

from deploy.console import Say
from deploy.deployment import Deployment, EngineName
from deploy.errors import LaunchError
from deploy.paths import CHECKOUT
from deploy.plan import LaunchPlan
from deploy.repository.stage import StagedModel, stage
from deploy.state import DeploymentFolder, DeploymentState

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
    """Ask a process to end and wait for it; kill it if it does not."""
    try:
        process.terminate()
        process.wait(_STOP_TIMEOUT_S)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(_STOP_TIMEOUT_S)
    except psutil.NoSuchProcess:
        return


def process_with_identity(identity: str) -> psutil.Process | None:
    """Return the server that was told to call itself ``identity``, or None."""
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            # Whoever starts a server has its whole command line, too.
            if f"--id={identity}" in command and command[0].endswith("/tritonserver"):
                return process
        except psutil.Error:
            continue
    return None


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
    shutil.rmtree(folder.repository, ignore_errors=True)
