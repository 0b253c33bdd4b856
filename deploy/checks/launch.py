"""What a launch is refused for before anything is made: what doctor would say, too."""

from __future__ import annotations

from deploy.checks.finding import Finding, refuse
from deploy.checks.ports import check_ports
from deploy.checks.repository import launch_findings
from deploy.checks.room import (
    container_memory_findings,
    instance_memory_findings,
    launch_rooms,
    room_findings,
    unpacking_findings,
    unused_findings,
    writable_findings,
)
from deploy.checks.tls import tls_findings
from deploy.deployment import Deployment, EngineName
from deploy.engines.instances import choose_devices
from deploy.engines.own_weights import own_weights
from deploy.engines.packed import find_archive
from deploy.engines.site import kit_models, site_models
from deploy.environment.checkpoints import check_own_weights
from deploy.errors import DeploymentError
from deploy.paths import MODEL_REPOSITORY, cache_folder, state_folder
from deploy.repository.stage import find_model
from deploy.server.command import require_plain
from deploy.state import DeploymentFolder


def check_given(deployment: Deployment) -> None:
    """Refuse what is named and cannot be served, whichever engine would serve it.

    Args:
        deployment: What is wanted.

    Raises:
        KitError: Naming the first model or file that is not there or not of its kind.
    """
    site_models(deployment)
    for model in kit_models(deployment):
        find_model(MODEL_REPOSITORY, model)
    for model, checkpoint in deployment.checkpoints.items():
        check_own_weights(model, checkpoint, deployment.norms.get(model))
    if deployment.archive is not None:
        find_archive(deployment)


def check_launch(deployment: Deployment, engine: EngineName) -> list[Finding]:
    """Refuse a launch that could not end well; return what to warn of.

    Args:
        deployment: What is wanted.
        engine: What starts it.

    Raises:
        KitError: With cause and remedy of the first thing that is wrong.
    """
    if engine == "local":
        check_plain_folders(deployment)
    choose_devices(deployment)
    check_room(deployment, engine)
    refuse(launch_findings(MODEL_REPOSITORY, kit_models(deployment), own_weights(deployment)))
    check_ports(deployment)
    found = [*tls_findings(deployment), *unused_findings(deployment, engine)]
    if engine == "apptainer":
        found += [*instance_memory_findings(deployment), *unpacking_findings()]
    return [finding for finding in found if finding.level == "warning"]


def check_shown_folders() -> None:
    """Refuse folders whose names a message or a command could not show as they are.

    Raises:
        DeploymentError: Naming the folder, and what chooses another.
    """
    for variable, path in (("XDG_CACHE_HOME", cache_folder()), ("XDG_STATE_HOME", state_folder())):
        if not str(path).isprintable():
            raise DeploymentError(
                f"{variable}: {str(path)!r} has characters that cannot be shown",
                f"set {variable} to a folder with a plain name",
            )


def check_plain_folders(deployment: Deployment) -> None:
    """Refuse folders whose names a server without a container cannot use.

    Args:
        deployment: What is wanted.

    Raises:
        DeploymentError: Naming the folder, and what chooses another.
    """
    for variable, path in (
        ("XDG_CACHE_HOME", cache_folder()),
        ("XDG_STATE_HOME", DeploymentFolder(deployment.name).path),
    ):
        require_plain(path, f"set {variable} to a folder with a plain name")


def check_room(deployment: Deployment, engine: EngineName) -> None:
    """Refuse what there is no room for.

    Args:
        deployment: What is wanted.
        engine: What starts it.

    Raises:
        LaunchError: Naming folder, what is needed and what there is.
    """
    rooms = launch_rooms(deployment, engine)
    refuse(writable_findings(rooms))
    refuse(room_findings(rooms))
    if engine == "docker":
        refuse(container_memory_findings(deployment))
