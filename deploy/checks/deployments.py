"""This user's deployments: are they alive, and what have interrupted commands left behind?

A command that makes something holds a lock next to it. If all locks of a folder are free,
nothing is being made in it, on any host that shares it.
"""

import platform
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from deploy.deployment.state import DeploymentFolder, DeploymentState, known_deployments
from deploy.engines.choose import engine_named
from deploy.engines.health import UP_AGAIN, why_dead
from deploy.engines.leftovers import FIX, LEFTOVERS, remove_leftovers
from deploy.host.errors import DeploymentError, KitError
from deploy.host.files import nobody_at_work, partials
from deploy.host.finding import Finding, ok, wrong
from deploy.host.paths import DIST, cache_folder, deployments_folder

_LOCKS = (".lock", "*.lock", "*/.lock", "*/*.lock")


def clear_deployment(name: str) -> str:
    """Do what ``down`` does, for a deployment whose processes are all dead."""
    folder = DeploymentFolder(name)
    with nobody_at_work([folder.launch_lock]):
        state = folder.state_here()
        if state is None:
            raise KitError(f"deployment {name} is gone already")
        engine = engine_named(state.engine)
        if state.supervisor.process() is not None or engine.serves(folder, state):
            raise KitError(f"deployment {name} is alive again")
        engine.stop(folder, state)
    return f"cleared deployment {name}, which had no live processes; its logs are kept"


def deployment_findings() -> Iterator[Finding]:
    names = known_deployments()
    if not names:
        yield ok("deployments", "none for this user")
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
            yield ok(subject, f"runs on {state.node}: run the check there")
        elif state.supervisor.process() is not None:
            yield _watched(subject, state)
        else:
            yield _unwatched(subject, folder, state)


def _watched(subject: str, state: DeploymentState) -> Finding:
    if not state.supervisor.is_running():
        detail = "its supervisor is stopped: failures are not healed"
        return Finding("problem", subject, detail, f"kill -CONT {state.supervisor.pid}")
    if state.phase == "ready":
        return ok(subject, f"ready, with engine {state.engine}, at HTTP port {state.ports.http}")
    cause = f": {state.cause}" if state.cause else ""
    look = "down" if state.phase == "stopping" else "logs --supervisor"
    remedy = state.remedy or f"numlkit {look} --name {state.name}"
    return Finding("warning", subject, f"it is {state.phase}{cause}", remedy)


def _unwatched(subject: str, folder: DeploymentFolder, state: DeploymentState) -> Finding:
    try:
        alive = engine_named(state.engine).serves(folder, state)
    except KitError as error:
        detail = f"its supervisor is dead, and perhaps its server: {error.cause}"
        return Finding("problem", subject, detail, error.remedy)
    down = f"numlkit down --name {state.name}"
    if alive:
        detail = "its supervisor is dead; its server still runs, but failures are no longer healed"
        return Finding("problem", subject, detail, f"{UP_AGAIN}; {down} stops it")
    death = why_dead(state)
    detail = f"its supervisor and its server are dead{f': {death.cause}' if death else ''}"
    remedy = f"{down} or {FIX} cleans it up"
    return Finding("problem", subject, detail, remedy, partial(clear_deployment, state.name))


def remove_half_built(root: Path, paths: tuple[Path, ...]) -> str:
    with nobody_at_work(_locks(root)):
        return remove_leftovers(paths, lambda: half_built(root))


def half_built_findings() -> Iterator[Finding]:
    """Return half-built files that no running command is working on."""
    for root in (cache_folder(), DIST, *sorted(deployments_folder().glob("*"))):
        if not (paths := half_built(root)):
            continue
        try:
            with nobody_at_work(_locks(root)):
                pass
        except KitError:
            continue
        detail = f"half-built and left behind: {', '.join(map(str, paths))}"
        yield Finding("warning", LEFTOVERS, detail, FIX, partial(remove_half_built, root, paths))


def half_built(root: Path) -> tuple[Path, ...]:
    folders = (root, *(path for path in root.glob("*") if path.is_dir()))
    return tuple(sorted(path for folder in folders for path in partials(folder)))


def _locks(root: Path) -> tuple[Path, ...]:
    return tuple(sorted({path for pattern in _LOCKS for path in root.glob(pattern)}))
