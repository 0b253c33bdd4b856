"""Which engine starts a deployment. Engines are listed here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from deploy.deployment.deployment import EngineName
from deploy.engines.base import Engine
from deploy.engines.resolved import Resolved
from deploy.host.command_line import for_this_user
from deploy.host.errors import DeploymentError, KitError, LaunchError

# In the order in which ``auto`` tries them. Imported when used: the docker SDK takes 0.25 s.
ENGINES: Mapping[EngineName, tuple[str, str]] = {
    "docker": ("deploy.engines.docker", "DockerEngine"),
    "apptainer": ("deploy.engines.apptainer", "ApptainerEngine"),
    "local": ("deploy.engines.local", "LocalEngine"),
}


def engine_named(name: EngineName) -> type[Engine]:
    module, engine = ENGINES[name]
    return cast("type[Engine]", getattr(import_module(module), engine))


def engine_to_prepare(resolved: Resolved) -> Engine:
    """Return the requested engine, or else ``local``, which needs the most preparation."""
    asked = resolved.deployment.engine
    name: EngineName = "local" if asked == "auto" else asked
    engine = engine_named(name)(resolved)
    engine.check_able()
    return engine


def choose_engine(resolved: Resolved) -> tuple[Engine, str | None]:
    """Return the engine that was asked for or, for ``auto``, the first that can start; and why.

    An engine whose image is not built is passed over, since a build takes minutes.

    Raises:
        KitError: If none can start; with their common cause, if they have one.
    """
    if resolved.deployment.engine != "auto":
        return engine_to_prepare(resolved), None
    refusals: list[tuple[str, KitError]] = []
    for engine in (engine_named(name)(resolved) for name in ENGINES):
        try:
            engine.check_able()
            engine.artefact()
        except KitError as error:
            refusals.append((engine.name, error))
        else:
            passed_over = (f"{name}: {error.cause}" for name, error in refusals)
            return engine, "; ".join([engine.reason, *passed_over])
    errors = [error for _, error in refusals]
    unable = isinstance(errors[-1], DeploymentError)
    if not unable or len({error.cause for error in errors[:-1]}) == 1:
        # A cause that also stops the last one is in the models, and is reported once.
        raise errors[0 if unable else -1]
    causes = (
        f"{name}: {error.cause}" + (f" ({for_this_user(error.remedy)})" if error.remedy else "")
        for name, error in refusals
    )
    remedy = "choose one with --engine, and follow its remedy"
    raise LaunchError(f"no engine can start it: {'; '.join(causes)}", remedy)
