"""Which engine starts a deployment."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.deployment import Deployment, EngineName
from deploy.engines.base import Engine
from deploy.errors import KitError, LaunchError


@dataclass(frozen=True)
class Choice:
    """An engine, and why it is that one.

    Attributes:
        engine: The engine.
        reason: Why, in one line; None where it was asked for.
    """

    engine: Engine
    reason: str | None


def engine_named(name: EngineName) -> Engine:
    """Return the engine ``name``."""
    # Imported where they are used: the docker SDK takes a quarter of a second.
    if name == "docker":
        from deploy.engines.docker_engine import DockerEngine

        return DockerEngine()
    if name == "apptainer":
        from deploy.engines.apptainer_engine import ApptainerEngine

        return ApptainerEngine()
    from deploy.engines.local import LocalEngine

    return LocalEngine()


def choose_engine(deployment: Deployment) -> Choice:
    """Return the engine that was asked for, or, for ``auto``, the first that can start at once.

    Docker comes before Apptainer, and Apptainer before none; one whose image is not built is
    passed over, since a build takes minutes.

    Args:
        deployment: What is wanted.

    Raises:
        KitError: If none can; where all have the same cause, with that.
    """
    if deployment.engine != "auto":
        return Choice(engine_named(deployment.engine), None)
    packed = deployment.env == "packed"
    passed_over, refusals = [], []
    names: tuple[EngineName, ...] = ("docker", "apptainer")
    for name in names:
        engine = engine_named(name)
        try:
            engine.artefact(deployment=deployment)
        except KitError as error:
            remedy = f" ({error.remedy})" if error.remedy else ""
            passed_over.append(f"{name}: {error.cause}{remedy}")
            refusals.append(error)
        else:
            done = "there" if packed else "built"
            why = f"its image is {done}" if name == "docker" else f"its .sif is {done}"
            return Choice(engine, "; ".join([why, *passed_over]))
    if not packed:
        local = engine_named("local")
        # What keeps this one from it, too, is in the models, and said once.
        local.artefact(deployment=deployment)
        return Choice(local, "; ".join(["needs no container", *passed_over]))
    if len({error.cause for error in refusals}) == 1:
        raise refusals[0]
    raise LaunchError(
        f"no engine can start a stock image: {'; '.join(passed_over)}",
        "--engine docker or apptainer, whose remedy is then this one",
    )
