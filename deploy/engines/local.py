"""The engine without a container: Triton from a wheel, started on the host itself."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from deploy.deployment.deployment import Ports
from deploy.deployment.plan import LaunchPlan
from deploy.deployment.state import DeploymentFolder, DeploymentState, ProcessId
from deploy.engines.base import MORE_SHARED_MEMORY, Engine
from deploy.engines.leftovers import (
    SCRATCH,
    SHARED_MEMORY,
    leftover_findings,
    look_around,
    scratch_folders,
    scratch_since,
    shm_prefix,
    sweep,
    taking_turns,
)
from deploy.engines.server import Note, Server, end_process
from deploy.engines.site import Runtime
from deploy.environment.check import check_models_answer
from deploy.environment.environment import Environment, plan_environment
from deploy.environment.interpreter import version_of
from deploy.environment.private_python import ensure_private_python
from deploy.host.command_line import quote
from deploy.host.console import Say
from deploy.host.errors import EnvironmentSetupError, KitError
from deploy.host.finding import Finding, Level, ok, wrong
from deploy.host.paths import cache_folder
from deploy.host.room import Room, check_room
from deploy.triton.command import (
    EXIT_TIMEOUT_S,
    require_plain,
    server_arguments,
    server_environment,
)
from deploy.triton.distribution import TritonDistribution, check_libc, ensure_distribution

_SCRATCH_WAIT_S = 5.0
_WITHOUT_PYTHON = "install Apptainer and serve a .sif built elsewhere (--engine apptainer --image)"


class ProcessServer(Server):
    """A server without a container: a child process of the supervisor.

    ``scratch`` is empty if its folders cannot be told from another server's.
    """

    def __init__(self, plan: LaunchPlan, note: Note) -> None:
        super().__init__(plan, note)
        self.scratch: frozenset[Path] = frozenset()
        # Only the folder itself shows where a backend's scratch folder is: starts take
        # turns, so that a new one is known to be this server's.
        with taking_turns():
            self._before = look_around()
            self._note(server=None, scratch=(), before=self._before)
            with plan.log.open("ab") as log:
                self._child = subprocess.Popen(
                    plan.arguments,
                    env=plan.variables,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.identity = ProcessId.of(self._child.pid)
            self._note(server=self.identity)
            deadline = time.monotonic() + _SCRATCH_WAIT_S
            while time.monotonic() < deadline and self.alive():
                if scratch_folders() - set(self._before.folders):
                    self.scratch = scratch_since(self._before, self.identity)
                    break
                time.sleep(0.02)
        if self.scratch:
            self._note(scratch=tuple(sorted(self.scratch)), before=None)

    def alive(self) -> bool:
        return self._child.poll() is None

    def stop(self) -> None:
        if self.alive():
            self._child.terminate()
            try:
                self._child.wait(EXIT_TIMEOUT_S + 5)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        end_group(self._child.pid)
        if not self.scratch:
            with taking_turns():
                self.scratch = scratch_since(self._before, self.identity)
        sweep(prefix=self._plan.shm_prefix, scratch=self.scratch)

    def _ended(self) -> str:
        return f"exited with status {self._child.returncode}"


class LocalEngine(Engine):
    """Runs tritonserver as a process of the calling user."""

    name = "local"
    reason = "needs no container"
    server_type = ProcessServer

    @cached_property
    def environment_here(self) -> Environment:
        return plan_environment(self.resolved.flavour, stub=self.resolved.release.own_python)

    @property
    def distribution(self) -> TritonDistribution:
        return TritonDistribution.in_cache(self.resolved.release, self.environment_here.lock.python)

    @property
    def runtime(self) -> Runtime:
        environment, distribution = self.environment_here, self.distribution
        return Runtime(
            environment=environment.folder,
            digest=environment.digest,
            python=distribution.stub_python,
            stub=None,
            server_python=distribution.stub_python,
            release=self.resolved.release,
            in_container=False,
            backends=frozenset(p.name for p in distribution.backends.glob("*")),
        )

    def artefact(self) -> str:
        return self.resolved.digest(self.environment_here.digest)

    def check_folders(self) -> None:
        """Refuse folders whose names Triton's Python backend cannot use, or that run nothing."""
        state = DeploymentFolder(self.deployment.name).path
        for variable, path in (("XDG_CACHE_HOME", cache_folder()), ("XDG_STATE_HOME", state)):
            require_plain(path, f"set {variable} to a folder with a plain name")
        _check_executable(cache_folder())

    def process(
        self, folder: DeploymentFolder, ports: Ports, identity: str, prefix: str
    ) -> tuple[tuple[str, ...], dict[str, str], None]:
        self.check_folders()
        deployment, triton = self.deployment, self.distribution
        arguments = server_arguments(
            distribution=triton,
            repository=folder.repository,
            listen=deployment.listen,
            ports=ports,
            shm_prefix=prefix,
            identity=identity,
            http_listen=self.resolved.http_listen,
            tls=deployment.tls,
            complete=self.resolved.complete,
            shared_memory=deployment.shared_memory,
            repository_index=deployment.repository_index,
            cache=self.resolved.uses_cache,
            flags=self.resolved.release.flags or frozenset(),
        )
        variables = server_environment(
            distribution=triton,
            libpython=self.environment_here.libpython,
            threads=deployment.threads,
            inherited=os.environ,
            devices=self.resolved.devices.variables,
        )
        return arguments, variables, None

    @staticmethod
    def command(plan: LaunchPlan) -> Sequence[str]:
        variables = [f"{name}={value}" for name, value in plan.variables.items()]
        return ("env", "-i", *variables, *plan.arguments)

    def prepare(self, say: Say) -> None:
        """Also check that each of the kit's models gives its reference output."""
        super().prepare(say)
        resolved = self.resolved
        if resolved.kit:
            say("checking every model against its reference output")
            check_models_answer(
                self.environment_here,
                [resolved.weights(model) for model in resolved.kit],
                threads=self.deployment.threads,
            )

    def fetch(self, say: Say) -> None:
        """Unpack Triton, and fetch the kit's own interpreter if that is the one used."""
        self.check_folders()
        check_libc(self.resolved.release)
        environment, resolved = self.environment_here, self.resolved
        if resolved.uses_kits and not environment.is_made:
            ensure_private_python(environment.interpreter, say, _WITHOUT_PYTHON)
        ensure_distribution(resolved.release, environment.lock.python, say)

    def require_room(self, extracted: int) -> None:
        """Check the disk that /tmp is on."""
        if extracted:
            setting = "use unpacked environments"
            check_room([Room(SCRATCH, extracted, "packed environments, extracted", setting)])

    def make(self, say: Say) -> None:
        if self.resolved.uses_kits:
            self.environment_here.make(say)
            check_stub_fits(self.environment_here, self.distribution)
        super().make(say)

    @classmethod
    def clear(cls, folder: DeploymentFolder, state: DeploymentState) -> None:
        server = cls.server(folder, state)
        if server is not None:
            end_process(server)
            end_group(server.pid)
        scratch = frozenset(state.scratch)
        if state.before is not None:
            # The supervisor was killed before it knew which folder its server made.
            with taking_turns():
                scratch = scratch_since(state.before, state.server)
        sweep(prefix=shm_prefix(folder.path), scratch=scratch)

    leftovers = staticmethod(leftover_findings)

    def rooms(self) -> list[Room]:
        shared = Room(SHARED_MEMORY, self.shared_bytes, "the model instances", MORE_SHARED_MEMORY)
        return [*super().rooms(), shared]

    def findings(self, level: Level) -> Iterator[Finding]:
        try:
            release, triton = self.resolved.release, self.distribution
            self.check_folders()
            if triton.root.exists():
                _check_whole(triton)
            check_libc(release)
            environment = self.environment_here
            if environment.is_made:
                check_stub_fits(environment, triton)
        except KitError as error:
            yield wrong(self.subject, error, level)
            return
        there = "unpacked" if triton.root.exists() else "downloaded at the first start"
        yield ok(self.subject, f"Triton {release.server} (release {release.release}): {there}")
        made = f"Python {environment.interpreter.version}, which the stub is built for"
        what = made if environment.is_made else "made at the first start"
        yield ok(self.subject, f"execution environment: {what}")


def end_group(server: int) -> None:
    """End what a server's models have started, and not ended."""
    with suppress(ProcessLookupError):
        os.killpg(server, signal.SIGKILL)


def check_stub_fits(environment: Environment, distribution: TritonDistribution) -> None:
    folder, wanted = environment.folder, distribution.stub_python
    found, problem = version_of(environment.python), None
    for path in (folder / "bin" / "activate", environment.libpython):
        if not path.exists():
            problem = f"has no {path.name}"
    if found is None:
        problem = problem or "has a bin/python that does not start"
    elif not found.startswith(f"{wanted}."):
        problem = f"has Python {found}; the stub is built for {wanted}"
    if problem is not None:
        remedy = f"rm -r {quote(str(folder))}, and run the command again"
        raise EnvironmentSetupError(f"execution environment {folder} {problem}", remedy)


def _check_whole(triton: TritonDistribution) -> None:
    for path in (triton.executable, triton.stub):
        if not os.access(path, os.X_OK):
            remedy = f"rm -r {quote(str(triton.root))}, then numlkit prepare to unpack it again"
            raise EnvironmentSetupError(f"{path} is missing or not executable", remedy)


def _check_executable(cache: Path) -> None:
    there = next(path for path in (cache, *cache.parents) if path.exists())
    if os.statvfs(there).f_flag & os.ST_NOEXEC:
        cause = f"{there} is mounted noexec: nothing in it can be started"
        remedy = "set XDG_CACHE_HOME to a folder of another file system"
        raise EnvironmentSetupError(cause, remedy)
