"""The deployments of this user on this host: are they alive, and watched?"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from deploy.checks.finding import Finding, ok, wrong
from deploy.checks.locks import nobody_at_work
from deploy.engines.base import process_with_identity
from deploy.engines.choose import engine_named
from deploy.engines.container import IMAGE_USER
from deploy.errors import DeploymentError, KitError
from deploy.health import why_dead
from deploy.state import DeploymentFolder, DeploymentState, known_deployments


@dataclass(frozen=True)
class ClearDeployment:
    """Does what ``down`` does for a deployment of which nothing is alive.

    Attributes:
        name: The deployment's name.
    """

    name: str

    def apply(self) -> str:
        """Look again, then clear it."""
        folder = DeploymentFolder(self.name)
        with nobody_at_work([folder.path / "launch.lock"]):
            state = folder.state_here()
            if state is None:
                raise KitError(f"deployment {self.name} is gone already")
            if state.supervisor.process() is not None or serves(folder, state):
                raise KitError(f"deployment {self.name} is alive again")
            engine_named(state.engine).stop(folder=folder, state=state)
        return f"cleared deployment {self.name}, of which nothing was alive; its logs stay"


def deployment_findings() -> Iterator[Finding]:
    """Return a finding for each deployment that has a state file."""
    names = known_deployments()
    if not names:
        yield ok("deployments", "none of this user")
    for name in names:
        folder, subject = DeploymentFolder(name), f"deployment {name}"
        try:
            state = folder.state()
        except DeploymentError as error:
            yield wrong(subject, error)
            continue
        if state is None:
            continue  # stopped meanwhile
        if state.node != platform.node():
            yield ok(subject, f"runs on {state.node}: see there")
        elif state.supervisor.process() is not None:
            yield _watched(subject, state)
        else:
            yield _unwatched(subject, folder, state)


def living_server(folder: DeploymentFolder, state: DeploymentState) -> psutil.Process | None:
    """Return a deployment's server if it lives, started by its supervisor or by its engine.

    An engine may start a container's server again, which the state does not know then.
    """
    process = state.server.process() if state.server is not None else None
    plan = folder.plan()
    if process is None and plan is not None:
        # In a container that root starts it has the image's user.
        in_image = state.engine == "docker" and os.getuid() == 0
        owners = (os.getuid(), IMAGE_USER) if in_image else None
        process = process_with_identity(plan.identity, owners)
    return process


def serves(folder: DeploymentFolder, state: DeploymentState) -> bool:
    """Return whether a deployment's server lives, or its container where that is elsewhere.

    Raises:
        KitError: If that cannot be found out.
    """
    if living_server(folder, state) is not None:
        return True
    if state.engine != "docker" or state.container is None:
        return False
    # Imported where it is used: the docker SDK takes a quarter of a second.
    from deploy.supervisor.container import container_runs

    return container_runs(state.container)


def _watched(subject: str, state: DeploymentState) -> Finding:
    if state.phase == "ready":
        return ok(subject, f"ready, with engine {state.engine}, at HTTP port {state.ports.http}")
    cause = f": {state.cause}" if state.cause else ""
    remedy = state.remedy or f"python3 deploy/logs.py --supervisor --name {state.name}"
    return Finding("warning", subject, f"it is {state.phase}{cause}", remedy)


def _unwatched(subject: str, folder: DeploymentFolder, state: DeploymentState) -> Finding:
    try:
        alive = serves(folder, state)
    except KitError as error:
        detail = (
            f"its supervisor is dead; whether its server is, too, cannot be told: {error.cause}"
        )
        return Finding("problem", subject, detail, error.remedy)
    if alive:
        return Finding(
            "problem",
            subject,
            "its supervisor is dead: its server runs on, and nothing that fails is healed",
            f"python3 deploy/up.py --name {state.name} starts it anew, "
            f"python3 deploy/down.py --name {state.name} ends it",
        )
    death = why_dead(state)
    return Finding(
        "problem",
        subject,
        f"its supervisor and its server are dead{f': {death.cause}' if death else ''}",
        f"python3 deploy/down.py --name {state.name} clears it away; so does doctor.py --fix",
        ClearDeployment(state.name),
    )
