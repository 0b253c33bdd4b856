"""What an engine is, and the part of a launch that all engines share."""

import os
import resource
import secrets
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

import psutil

from deploy.artefacts.keys import Signer
from deploy.deployment.deployment import Deployment, EngineName, Ports
from deploy.deployment.plan import ContainerPlan, LaunchPlan
from deploy.deployment.ports import choose_ports
from deploy.deployment.state import DeploymentFolder, DeploymentState
from deploy.engines.kept import forget
from deploy.engines.leftovers import shm_prefix
from deploy.engines.resolved import Resolved, of_model
from deploy.engines.server import STOP_TIMEOUT_S, Server, end_process, servers
from deploy.engines.site import Runtime, check_site, stage_site_model
from deploy.environment.environment import Environment, plan_environment
from deploy.environment.lock import SIZES
from deploy.host.console import Say
from deploy.host.errors import (
    DeploymentError,
    EnvironmentSetupError,
    GpuError,
    LaunchError,
    ModelError,
)
from deploy.host.failures import last_words
from deploy.host.finding import Finding, Level
from deploy.host.paths import IMPORTS, MODEL_REPOSITORY, cache_folder
from deploy.host.programs import without_python_variables
from deploy.host.room import Room, size
from deploy.triton.config import LaunchSettings
from deploy.triton.stage import StagedModel, plan_models, stage

ROOM = "room"  # the subject of findings about disks and memory
MORE_SHARED_MEMORY = "use fewer --instances, or numlkit doctor --fix if dead servers fill it"
_LAUNCH_BYTES = 100 * 10**6
# Virtual memory of a server on 2 cores, in which an instance has some 35 threads: 3 instances take
# 2.2 GB, 9 take 4.0 GB.
_ADDRESSES, _ADDRESSES_PER_INSTANCE = 13 * 10**8, 3 * 10**8
_SHM_BYTES_PER_INSTANCE = 2 * 10**6


class Engine(ABC):
    """One way to run a server: an instance launches one deployment, the class can stop any.

    Attributes:
        name: As in ``--engine NAME``.
        reason: Why ``auto`` chooses it, if it can start.
        contained: Whether it starts images.
        isolated: Whether its containers have their own network address and CPU limit.
        shares_memory: Whether other containers may share the /dev/shm of one of its.
        server_type: What the supervisor starts from a plan.
    """

    name: ClassVar[EngineName]
    reason: ClassVar[str]
    server_type: ClassVar[type[Server]]
    contained: ClassVar[bool] = False
    isolated: ClassVar[bool] = False
    shares_memory: ClassVar[bool] = False

    def __init__(self, resolved: Resolved) -> None:
        self.resolved = resolved

    @property
    def deployment(self) -> Deployment:
        return self.resolved.deployment

    def without(self, error: ModelError) -> "Engine":
        """Return the engine for the other models, where one cannot be served."""
        return self.serving(self.resolved.without(error))

    def serving(self, resolved: Resolved) -> "Engine":
        """Return the engine for other models of the same deployment."""
        return type(self)(resolved)

    def check_able(self) -> None:
        """Refuse a deployment that needs something this engine does not have."""
        deployment = self.deployment
        if self.contained:
            if deployment.shared_memory and not (
                self.shares_memory and deployment.engine == self.name
            ):
                why = "a container has its own /dev/shm"
                able = "engine local, or docker for clients in containers"
                raise DeploymentError(f"shared_memory needs {able}: {why}")
            return
        if deployment.env == "packed" or deployment.image is not None:
            what = "env packed" if deployment.env == "packed" else "an image"
            raise DeploymentError(f"{what} needs engine docker or apptainer")

    def verified(self, signer: Signer) -> "tuple[Engine, str]":
        """Return the engine for the image that was found to be signed; and the image, in words.

        Raises:
            SignatureError: If it is not signed by this signer, or has changed since.
        """
        cause = f"engine {self.name} runs files of this checkout, which are not signed"
        raise DeploymentError(cause, "--engine docker or apptainer")

    @abstractmethod
    def artefact(self) -> str:
        """Return a digest of everything that a launch would run and serve now."""

    def plan(self, *, parent: int | None = None) -> LaunchPlan:
        """Return what a launch would do, without making or changing anything.

        Args:
            parent: The process that the deployment is to end with, if with any.
        """
        # Those that are started for jobs are started at once, and would all take the usual ports.
        usual = parent is None
        ports = choose_ports(self.deployment, self.resolved.http_listen, usual=usual)
        identity = f"numlkit-{self.deployment.name}-{secrets.token_hex(4)}"
        plan = self.render(ports=ports, identity=identity, artefact=self.artefact())
        return plan.model_copy(update={"parent": parent})

    def render(self, *, ports: Ports, identity: str, artefact: str) -> LaunchPlan:
        """Return the plan, given what differs from launch to launch; nothing is looked up."""
        deployment, resolved = self.deployment, self.resolved
        folder = DeploymentFolder(deployment.name)
        prefix = shm_prefix(folder.path)
        arguments, variables, container = self.process(folder, ports, identity, prefix)
        return LaunchPlan(
            deployment=deployment,
            engine=self.name,
            ports=ports,
            http_listen=resolved.http_listen,
            arguments=arguments,
            variables=variables,
            repository=folder.repository,
            instances=resolved.instances,
            shm_prefix=prefix,
            identity=identity,
            artefact=artefact,
            log=folder.log,
            container=container,
            broken=dict(resolved.broken),
        )

    @abstractmethod
    def process(
        self, folder: DeploymentFolder, ports: Ports, identity: str, prefix: str
    ) -> tuple[tuple[str, ...], dict[str, str], ContainerPlan | None]:
        """Return the server's arguments, its environment variables and the container around it."""

    @staticmethod
    @abstractmethod
    def command(plan: LaunchPlan) -> Sequence[str]:
        """Return the command, as words, that starts the planned server by hand."""

    @property
    @abstractmethod
    def runtime(self) -> Runtime:
        """What the models run in, after `fetch`."""

    def prepare(self, say: Say) -> None:
        resolved = self.resolved
        for warning in resolved.devices.warnings:
            say(f"warning: {warning}")
        resolved.look_into_archives(say)
        self.fetch(say)
        check_site(resolved, self.runtime, say)
        self.require_room(resolved.extracted_bytes)
        self.make(say)
        self.models()  # reads every configuration, and one may be broken

    @abstractmethod
    def fetch(self, say: Say) -> None:
        """Find or download the server, and the interpreter that its models run in."""

    @abstractmethod
    def require_room(self, extracted: int) -> None:
        """Check that there is room for the bytes that the server extracts to its /tmp."""

    def make(self, say: Say) -> None:
        """Make what a launch needs on this host besides the server."""
        made = self.resolved.made_environments
        for model in self.resolved.site:
            environment = made.get(model.environment_name or "")
            if environment is not None:
                with of_model(model.name):
                    environment.make(say)
        # Not in a container: the server there never unpickles anything.
        self.resolved.import_checkpoints(say)

    def models(self) -> tuple[StagedModel, ...]:
        resolved, runtime = self.resolved, self.runtime
        settings = LaunchSettings(
            environment=runtime.environment,
            parameters={"environment_digest": runtime.digest, **runtime.release.model_parameters},
            instances=self.deployment.instance_count(),
            gpu_instances=resolved.gpu_instances,
            batch=self.deployment.batch,
            limits=self.deployment.limits,
        )
        kit = plan_models(MODEL_REPOSITORY, resolved.kit, settings, resolved.own_weights)
        return (
            *(replace(model, stub=runtime.stub) for model in kit),
            *(stage_site_model(resolved, model, runtime) for model in resolved.site),
        )

    def lay_out(self, folder: DeploymentFolder) -> None:
        """Put into a deployment's folder what a server started by hand expects there."""
        stage(self.models(), folder.repository)

    def launch(self, *, plan: LaunchPlan, say: Say) -> DeploymentState:
        """Start supervisor and server; return the state once every model answers correctly.

        If one does not, nothing is left running.
        """
        folder = DeploymentFolder(plan.deployment.name)
        folder.path.mkdir(parents=True, exist_ok=True)
        stage(self.models(), plan.repository)
        folder.state_file.unlink(missing_ok=True)
        folder.log.write_bytes(b"")
        folder.write_plan(plan)
        say(f"starting {describe_instances(plan)}")
        with folder.supervisor_log.open("wb") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "deploy.engines", str(folder.path)],
                cwd="/",
                # Without PYTHONHOME: a framework's shell names its own Python there.
                env={**without_python_variables(), "PYTHONPATH": str(IMPORTS)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            return _await_ready(folder, supervisor, plan.deployment)
        except BaseException:
            if supervisor.poll() is None:
                end_process(psutil.Process(supervisor.pid))
            # A killed supervisor has left its server behind.
            state = folder.state()
            if state is not None:
                self.stop(folder, state)
            _forget(folder)
            raise

    @classmethod
    def stop(cls, folder: DeploymentFolder, state: DeploymentState) -> None:
        """Have the supervisor stop the server; do it here if the supervisor is gone."""
        supervisor = state.supervisor.process()
        if supervisor is not None:
            end_process(supervisor)
            state = folder.state() or state
        cls.clear(folder, state)
        _forget(folder)

    @classmethod
    @abstractmethod
    def clear(cls, folder: DeploymentFolder, state: DeploymentState) -> None:
        """Stop a server that has no supervisor, and remove what it leaves behind."""

    @classmethod
    def server(cls, folder: DeploymentFolder, state: DeploymentState) -> psutil.Process | None:
        """Return a deployment's server if it is alive on this host, whoever restarted it."""
        process = state.server.process() if state.server is not None else None
        plan = folder.plan()
        if process is None and plan is not None:
            process = next(servers(plan.identity, owners=cls.server_owners()), None)
        return process

    @classmethod
    def server_owners(cls) -> Collection[int]:
        """Return the uids that may own the servers of this user's deployments."""
        return (os.getuid(),)

    @classmethod
    def serves(cls, folder: DeploymentFolder, state: DeploymentState) -> bool:
        """Return whether a deployment's server is alive, on any host."""
        return cls.server(folder, state) is not None

    # What doctor asks, and a launch before it starts.

    @property
    def subject(self) -> str:
        return f"engine {self.name}"

    @abstractmethod
    def findings(self, level: Level) -> Iterator[Finding]:
        """Return whether it can start the deployment on this host."""

    @classmethod
    @abstractmethod
    def leftovers(cls) -> Iterator[Finding]:
        """Return what is left of this user's deployments that are gone."""

    @property
    def environment_here(self) -> Environment | None:
        """The environment that a launch needs on this host, whether made yet or not."""
        # Models in a container have theirs in the image; this one imports checkpoints.
        return plan_environment("serving") if self.deployment.checkpoints else None

    def rooms(self) -> list[Room]:
        """Return what a launch writes on this host."""
        folder = DeploymentFolder(self.deployment.name).path
        copied = [path for model in self.resolved.site for path in model.files.values()]
        needed = _LAUNCH_BYTES + sum(path.stat().st_size for path in copied)
        rooms = [Room(folder, needed, "the deployment", "set XDG_STATE_HOME")]
        with suppress(EnvironmentSetupError):  # reported by the check of the environment
            environment = self.environment_here
            if environment is not None and not environment.packages.exists():
                needed, what = SIZES[environment.flavour].making, "the execution environment"
                rooms.append(Room(cache_folder(), needed, what, "set XDG_CACHE_HOME"))
        return rooms

    @property
    def shared_bytes(self) -> int:
        return self._instances * _SHM_BYTES_PER_INSTANCE

    @property
    def _instances(self) -> int:
        try:
            return sum(self.resolved.instances.values())
        except GpuError:  # reported by the check of the GPUs
            return len(self.resolved.models)

    def launch_findings(self) -> Iterator[Finding]:
        """Return what is wrong with a launch's memory and temporary folder."""
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        wanted = _ADDRESSES + self._instances * _ADDRESSES_PER_INSTANCE
        if resource.RLIM_INFINITY != limit < wanted:
            # It would hang or crash somewhere, without a word about the reason.
            detail = (
                f"this shell limits programs to {size(limit)} of virtual memory; Triton reserves "
                f"up to {size(wanted)} for these instances"
            )
            remedy = "ulimit -v unlimited, fewer --models or --instances, or start it elsewhere"
            yield Finding("problem", ROOM, detail, remedy)
        if self.deployment.shm_size is not None:
            why = "only a Docker container has shared memory of a chosen size"
            detail = f"shm_size has no effect with engine {self.name}: {why}"
            yield Finding("warning", ROOM, detail, "--engine docker, or leave it out")


def describe_instances(plan: LaunchPlan) -> str:
    """Return how many processes serve each model, as in ``2 x nugraph2``."""
    return ", ".join(f"{count} x {model}" for model, count in plan.instances.items())


def _await_ready(
    folder: DeploymentFolder, supervisor: subprocess.Popen[bytes], deployment: Deployment
) -> DeploymentState:
    remedy = f"read its log: {folder.supervisor_log}"
    # The supervisor keeps the deadline; this one is for a supervisor that is not running. Without a
    # model that hangs it starts the server once more.
    starts = len(deployment.models) if deployment.keep_going else 1
    deadline = time.monotonic() + starts * (deployment.timeout + STOP_TIMEOUT_S)
    while time.monotonic() < deadline:
        # Before the state is read, so that this is the last one.
        ended = supervisor.poll() is not None
        state = folder.state()
        if state is not None and state.phase == "ready":
            return state
        if state is not None and state.phase == "failed":
            raise LaunchError(state.cause or "the server failed", state.remedy)
        if ended:
            if state is None and supervisor.returncode == 0:
                raise LaunchError("stopped by another command while it was starting")
            said = last_words(folder.supervisor_log.read_text(errors="replace"))
            raise LaunchError(f"the supervisor exited: {said}", remedy)
        time.sleep(0.05)
    raise LaunchError("the supervisor does not answer", remedy)


def _forget(folder: DeploymentFolder) -> None:
    """Remove a deployment's state, staged repository and copy of a .sif; its logs stay."""
    forget(folder.path)
    folder.state_file.unlink(missing_ok=True)
    folder.plan_file.unlink(missing_ok=True)
    shutil.rmtree(folder.repository, ignore_errors=True)


def forget_everything(folder: DeploymentFolder) -> None:
    """Remove a deployment's folder, with its logs."""
    _forget(folder)
    shutil.rmtree(folder.path, ignore_errors=True)
