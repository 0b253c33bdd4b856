"""The engine without a container: Triton from a wheel, started on the host itself."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

from deploy.console import Say
from deploy.deployment import Deployment
from deploy.engines.base import Engine
from deploy.environment.check import check_models_answer, check_stub_fits
from deploy.environment.checkpoints import ensure_imported, imported_folder
from deploy.environment.compiled import compiled_folder, ensure_compiled
from deploy.environment.install import Environment
from deploy.environment.standard import standard_environment
from deploy.errors import DeploymentError, KitError, LaunchError
from deploy.files import digest_of
from deploy.paths import CHECKOUT, MODEL_REPOSITORY, cache_folder
from deploy.repository.config import LaunchSettings
from deploy.repository.stage import MODEL_FILES, VERSION, find_model, plan_models, stage
from deploy.server.command import server_arguments, server_environment
from deploy.server.distribution import (
    TritonDistribution,
    distribution_folder,
    ensure_distribution,
)
from deploy.server.ports import choose_ports
from deploy.server.release import find_release
from deploy.state import DeploymentFolder, DeploymentState, LaunchPlan
from deploy.supervisor.leftovers import (
    SHARED_MEMORY,
    scratch_since,
    shm_prefix,
    sweep,
    taking_turns,
)
from deploy.supervisor.stubs import living_stubs

_MB = 1_000_000
# The environment takes 1.3 GB, and pip as much again while it unpacks; Triton 0.2 GB.
_ENVIRONMENT_BYTES = 3_000 * _MB
_LAUNCH_BYTES = 100 * _MB
_SHM_BYTES_PER_INSTANCE = 2 * _MB
_STOP_TIMEOUT_S = 30.0
_PLAIN = re.compile(r"[\w./+@%:,=~-]+", re.ASCII)


class LocalEngine(Engine):
    """Runs tritonserver as a process of the calling user."""

    name = "local"

    def plan(self, *, deployment: Deployment) -> LaunchPlan:
        """Return what a launch would do."""
        environment = standard_environment(deployment.flavour).environment
        distribution = self._distribution(deployment, environment)
        folder = DeploymentFolder(deployment.name)
        for variable, path in (
            ("XDG_CACHE_HOME", environment.folder),
            ("XDG_CACHE_HOME", distribution.root),
            ("XDG_STATE_HOME", folder.repository),
        ):
            _require_plain(variable, path)
        for model in deployment.models:
            find_model(MODEL_REPOSITORY, model)
        ports = choose_ports(deployment.listen, deployment.ports)
        prefix = shm_prefix(folder.path)
        identity = f"numlkit-{deployment.name}-{secrets.token_hex(4)}"
        return LaunchPlan(
            deployment=deployment,
            ports=ports,
            arguments=server_arguments(
                distribution=distribution,
                repository=folder.repository,
                listen=deployment.listen,
                ports=ports,
                shm_prefix=prefix,
                identity=identity,
            ),
            variables=server_environment(
                distribution=distribution,
                threads=deployment.threads,
                inherited=os.environ,
            ),
            repository=folder.repository,
            instances=deployment.instance_count(),
            shm_prefix=prefix,
            identity=identity,
            artefact=self.artefact(deployment=deployment),
            log=folder.log,
        )

    def prepare(self, *, deployment: Deployment, say: Say) -> Path:
        """Make Triton, environment and weights where they lack, and check them."""
        cache = cache_folder()
        standard = standard_environment(deployment.flavour)
        environment = standard.environment
        if not standard.packages.exists():
            _require_space(cache, _ENVIRONMENT_BYTES, "the execution environment")
        _require_space(DeploymentFolder(deployment.name).path, _LAUNCH_BYTES, "the deployment")
        processes = len(deployment.models) * deployment.instance_count()
        _require_space(SHARED_MEMORY, processes * _SHM_BYTES_PER_INSTANCE, "the model instances")
        distribution = ensure_distribution(
            cache, find_release(deployment.triton), standard.lock.python, say
        )
        standard.ensure(say)
        check_stub_fits(environment, distribution)
        weights = {
            model: ensure_imported(
                cache, environment, model, checkpoint, deployment.norms.get(model), say
            )
            for model, checkpoint in deployment.checkpoints.items()
        }
        folders = [
            weights.get(model, MODEL_REPOSITORY / model / VERSION) for model in deployment.models
        ]
        # Reads every configuration: a broken one is to be found before the checks cost time.
        plan_models(
            MODEL_REPOSITORY, deployment.models, _settings(deployment, environment), weights
        )
        compiled_as = ensure_compiled(environment, folders, cache, say)
        say("checking that every model gives its golden answer")
        check_models_answer(
            environment,
            folders,
            stamps=cache / "checked",
            threads=deployment.threads,
            compiled=compiled_folder(cache),
            compiled_as=compiled_as,
        )
        return environment.folder

    def launch(self, *, plan: LaunchPlan, say: Say) -> DeploymentState:
        """Start supervisor and server, and wait until every model answers rightly."""
        deployment = plan.deployment
        folder = DeploymentFolder(deployment.name)
        folder.path.mkdir(parents=True, exist_ok=True)
        environment = standard_environment(deployment.flavour).environment
        weights = {
            model: imported_folder(cache_folder(), checkpoint, deployment.norms.get(model))
            for model, checkpoint in deployment.checkpoints.items()
        }
        models = plan_models(
            MODEL_REPOSITORY, deployment.models, _settings(deployment, environment), weights
        )
        stage(models, plan.repository)
        folder.state_file.unlink(missing_ok=True)
        folder.log.write_bytes(b"")
        folder.write_plan(plan)
        say(f"starting {len(models)} models with {plan.instances} instances each")
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
                _end(psutil.Process(supervisor.pid))
            # A supervisor that was killed has left its server behind.
            state = folder.state()
            if state is not None:
                self.stop(folder=folder, state=state)
            _forget(folder)
            raise

    def stop(self, *, folder: DeploymentFolder, state: DeploymentState) -> None:
        """Let the supervisor stop the server; do its work if it is gone."""
        supervisor = state.supervisor.process()
        if supervisor is not None:
            _end(supervisor)
            state = folder.state() or state
        server = state.server.process() if state.server is not None else _unrecorded(folder)
        stubs = living_stubs(server) if server is not None else ()
        if server is not None:
            _end(server)
        scratch = frozenset(state.scratch)
        if state.before is not None:
            # The supervisor was killed before it knew which folder its server made.
            with taking_turns():
                scratch = scratch_since(state.before, state.server)
        sweep(
            prefix=shm_prefix(folder.path),
            scratch=scratch,
            processes=[stub.process for stub in stubs],
        )
        _forget(folder)

    def _distribution(self, deployment: Deployment, environment: Environment) -> TritonDistribution:
        python = ".".join(environment.python_version.split(".")[:2])
        root = distribution_folder(cache_folder(), find_release(deployment.triton), python)
        return TritonDistribution(root=root, stub_python=python)

    def artefact(self, *, deployment: Deployment) -> str:
        """Return the digest of execution environment and model files."""
        environment = standard_environment(deployment.flavour).environment
        total = hashlib.sha256(environment.digest.encode())
        for model in deployment.models:
            checkpoint = deployment.checkpoints.get(model)
            folder = MODEL_REPOSITORY / model
            weights = folder / VERSION
            if checkpoint is not None:
                weights = imported_folder(cache_folder(), checkpoint, deployment.norms.get(model))
            total.update(weights.name.encode())
            for path in (
                folder / "config.pbtxt",
                folder / VERSION / "model.py",
                *(weights / name for name in MODEL_FILES),
            ):
                if path.is_file():
                    total.update(digest_of([path], base=path.parent).encode())
        return total.hexdigest()


def _settings(deployment: Deployment, environment: Environment) -> LaunchSettings:
    return LaunchSettings(
        environment=environment.folder,
        parameters={
            "compiled": str(compiled_folder(cache_folder())),
            "environment_digest": environment.digest,
            "threads": str(deployment.threads),
        },
        instances=deployment.instance_count(),
    )


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


def _unrecorded(folder: DeploymentFolder) -> psutil.Process | None:
    """Return the server whose supervisor was killed before it could write its number down."""
    plan = folder.plan()
    if plan is None:
        return None
    for process in psutil.process_iter():
        try:
            if f"--id={plan.identity}" in process.cmdline():
                return process
        except psutil.Error:
            continue
    return None


def _end(process: psutil.Process) -> None:
    """Ask a process to end and wait for it; kill it if it does not."""
    try:
        process.terminate()
        process.wait(_STOP_TIMEOUT_S)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(_STOP_TIMEOUT_S)
    except psutil.NoSuchProcess:
        return


def _forget(folder: DeploymentFolder) -> None:
    """Remove a deployment's state and staged repository; its logs stay."""
    folder.state_file.unlink(missing_ok=True)
    folder.plan_file.unlink(missing_ok=True)
    shutil.rmtree(folder.repository, ignore_errors=True)


def _require_plain(variable: str, path: Path) -> None:
    """Refuse what Triton's Python backend would break at: it puts paths into a shell command."""
    if not _PLAIN.fullmatch(str(path)):
        raise DeploymentError(
            f"{path}: Triton's Python backend cannot use a path with blanks or special characters",
            f"set {variable} to a folder with a plain name",
        )


def _require_space(folder: Path, needed: int, what: str) -> None:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise KitError(
            f"{there} has {free / _MB:.0f} MB free, {what} needs {needed / _MB:.0f} MB",
            f"free space there (df -h {there})",
        )
