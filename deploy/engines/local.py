"""The engine without a container: Triton from a wheel, started on the host itself."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from deploy.building.preflight import Room, check_room
from deploy.console import Say
from deploy.deployment import Deployment
from deploy.engines.base import Engine, end_process, process_with_identity
from deploy.engines.instances import (
    choose_devices,
    count_instances,
    gpu_instances,
)
from deploy.engines.own_weights import digest_served, ensure_own_weights, own_weights
from deploy.engines.site import (
    Runtime,
    all_complete,
    check_site,
    kit_models,
    kits_flavour,
    runs_in_kits,
    site_environments,
    site_models,
    stage_site_model,
)
from deploy.environment.check import check_models_answer, check_stub_fits
from deploy.environment.install import Environment
from deploy.environment.standard import standard_environment
from deploy.paths import MODEL_REPOSITORY, cache_folder
from deploy.plan import LaunchPlan
from deploy.repository.config import LaunchSettings
from deploy.repository.stage import VERSION, StagedModel, plan_models
from deploy.repository.view import THE_HOST
from deploy.server.command import (
    LAUNCHER,
    keyed_command,
    require_plain,
    server_arguments,
    server_environment,
)
from deploy.server.distribution import (
    TritonDistribution,
    distribution_folder,
    ensure_distribution,
)
from deploy.server.ports import choose_ports
from deploy.server.release import find_release
from deploy.state import DeploymentFolder, DeploymentState
from deploy.supervisor.leftovers import (
    SCRATCH,
    scratch_since,
    shm_prefix,
    sweep,
    taking_turns,
)


class LocalEngine(Engine):
    """Runs tritonserver as a process of the calling user."""

    name = "local"

    def plan(self, *, deployment: Deployment) -> LaunchPlan:
        """Return what a launch would do."""
        environment = standard_environment(kits_flavour(deployment)).environment
        distribution = self._distribution(deployment, environment)
        folder = DeploymentFolder(deployment.name)
        for variable, path in (
            ("XDG_CACHE_HOME", environment.folder),
            ("XDG_CACHE_HOME", distribution.root),
            ("XDG_STATE_HOME", folder.repository),
        ):
            require_plain(path, f"set {variable} to a folder with a plain name")
        devices = choose_devices(deployment)
        instances = count_instances(deployment, devices)
        ports = choose_ports(
            deployment.listen, deployment.ports, http_listen=deployment.http_listen
        )
        prefix = shm_prefix(folder.path)
        identity = f"numlkit-{deployment.name}-{secrets.token_hex(4)}"
        return LaunchPlan(
            deployment=deployment,
            engine=self.name,
            ports=ports,
            arguments=keyed_command(
                server_arguments(
                    distribution=distribution,
                    repository=folder.repository,
                    listen=deployment.listen,
                    ports=ports,
                    shm_prefix=prefix,
                    identity=identity,
                    http_listen=deployment.http_listen,
                    tls=deployment.tls,
                    complete=all_complete(site_models(deployment)),
                ),
                python=Path(sys.executable),
                launcher=LAUNCHER,
                key_file=folder.key_file,
            ),
            variables=server_environment(
                distribution=distribution,
                threads=deployment.threads,
                inherited=os.environ,
                devices=devices.variables,
            ),
            repository=folder.repository,
            instances=instances,
            shm_prefix=prefix,
            identity=identity,
            artefact=self.artefact(deployment=deployment),
            log=folder.log,
            key_file=folder.key_file,
            site_models=tuple(model.name for model in site_models(deployment)),
        )

    def prepare(self, *, deployment: Deployment, say: Say) -> None:
        """Make Triton, environment and weights where they lack, and check them."""
        cache = cache_folder()
        standard = standard_environment(kits_flavour(deployment))
        environment, site = standard.environment, site_models(deployment)
        models = kit_models(deployment)
        needs_environment = bool(models) or any(runs_in_kits(model) for model in site)
        for warning in choose_devices(deployment).warnings:
            say(f"warning: {warning}")
        distribution = ensure_distribution(
            cache, find_release(deployment.triton), standard.lock.python, say
        )
        check_site(deployment, site, self._runtime(deployment), say)
        extracted = sum(given.unpacked_bytes for given in site_environments(site))
        if extracted:
            setting = "an environment that is a folder is not extracted"
            check_room([Room(SCRATCH, extracted, "packed environments, extracted", setting)])
        if needs_environment:
            standard.ensure(say)
            check_stub_fits(environment, distribution)
        ensure_own_weights(deployment, say)
        # Reads every configuration: a broken one is to be found before the checks cost time.
        self.models(deployment=deployment)
        if not models:
            return
        weights = own_weights(deployment)
        folders = [weights.get(m, MODEL_REPOSITORY / m / VERSION) for m in models]
        say("checking that every model gives its golden answer")
        check_models_answer(
            environment,
            folders,
            stamps=cache / "checked",
            threads=deployment.threads,
        )

    def command(self, plan: LaunchPlan) -> Sequence[str]:
        """Return the words of a command that starts the planned server by hand."""
        variables = [f"{name}={value}" for name, value in plan.variables.items()]
        return ("env", "-i", *variables, *plan.arguments)

    def models(self, *, deployment: Deployment) -> tuple[StagedModel, ...]:
        """Return the models, configured for a launch."""
        environment = standard_environment(kits_flavour(deployment)).environment
        settings, weights = _settings(deployment, environment), own_weights(deployment)
        runtime = self._runtime(deployment)
        return (
            *plan_models(MODEL_REPOSITORY, kit_models(deployment), settings, weights),
            *(
                stage_site_model(deployment, model, runtime, THE_HOST)
                for model in site_models(deployment)
            ),
        )

    def clear(self, *, folder: DeploymentFolder, state: DeploymentState) -> None:
        """End server and stubs; remove shared memory and scratch folders."""
        server = state.server.process() if state.server is not None else _unrecorded(folder)
        if server is not None:
            end_process(server)
        scratch = frozenset(state.scratch)
        if state.before is not None:
            # The supervisor was killed before it knew which folder its server made.
            with taking_turns():
                scratch = scratch_since(state.before, state.server)
        sweep(prefix=shm_prefix(folder.path), scratch=scratch)

    def _distribution(self, deployment: Deployment, environment: Environment) -> TritonDistribution:
        python = ".".join(environment.python_version.split(".")[:2])
        root = distribution_folder(cache_folder(), find_release(deployment.triton), python)
        return TritonDistribution(root=root, stub_python=python)

    def _runtime(self, deployment: Deployment) -> Runtime:
        environment = standard_environment(kits_flavour(deployment)).environment
        distribution = self._distribution(deployment, environment)
        return Runtime(
            environment=environment.folder,
            python=distribution.stub_python,
            stub=None,
            server_python=distribution.stub_python,
            in_container=False,
            backends=frozenset(p.name for p in distribution.backends.glob("*")),
        )

    def artefact(self, *, deployment: Deployment) -> str:
        """Return the digest of execution environment and model files."""
        environment = standard_environment(kits_flavour(deployment)).environment
        return digest_served(deployment, environment.digest)


def _settings(deployment: Deployment, environment: Environment) -> LaunchSettings:
    return LaunchSettings(
        environment=environment.folder,
        parameters={"environment_digest": environment.digest},
        instances=deployment.instance_count(),
        gpus=gpu_instances(deployment, choose_devices(deployment)),
        batch=deployment.batch,
    )


def _unrecorded(folder: DeploymentFolder) -> psutil.Process | None:
    """Return the server whose supervisor was killed before it could write its number down."""
    plan = folder.plan()
    return process_with_identity(plan.identity) if plan is not None else None
