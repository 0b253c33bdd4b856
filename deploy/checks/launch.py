"""What makes a launch fail before anything is made; doctor reports the same."""

from deploy.checks.host import (
    port_findings,
    room_findings,
    tls_findings,
    triton_findings,
    writable_findings,
)
from deploy.checks.repository import model_findings
from deploy.deployment.state import is_loopback
from deploy.engines.base import Engine
from deploy.engines.checkpoints import check_own_weights
from deploy.engines.resolved import Resolved
from deploy.host.errors import DeploymentError
from deploy.host.finding import Finding, refuse
from deploy.host.paths import MODEL_REPOSITORY, cache_folder, state_folder
from deploy.triton.stage import find_model


def check_given(resolved: Resolved) -> list[Finding]:
    """Refuse settings that no engine could serve; return warnings."""
    _check_shown_folders()
    deployment = resolved.deployment
    _ = resolved.site
    # An image may have others.
    for model in resolved.kit if deployment.image is None else ():
        find_model(MODEL_REPOSITORY, model)
    for model, checkpoint in deployment.checkpoints.items():
        check_own_weights(model, checkpoint, deployment.norms.get(model))
    if deployment.archive is not None:
        _ = resolved.archive
    warnings = [finding for finding in tls_findings(deployment) if finding.level == "warning"]
    # On this host alone nobody attacks; a service for others is another matter.
    if not is_loopback(deployment.listen):
        found = triton_findings(resolved)
        warnings += (finding for finding in found if finding.level == "warning")
    return warnings


def check_launch(engine: Engine) -> list[Finding]:
    """Refuse a launch that is bound to fail; return warnings."""
    resolved = engine.resolved
    _ = resolved.devices
    refuse(model_findings(MODEL_REPOSITORY, resolved.kit, resolved.own_weights))
    warnings = check_room(engine)
    refuse(port_findings(resolved))
    return warnings


def check_room(engine: Engine) -> list[Finding]:
    """Refuse to write where there is no room; return warnings."""
    rooms, own = engine.rooms(), list(engine.launch_findings())
    refuse([*writable_findings(rooms), *room_findings(rooms), *own])
    return [finding for finding in own if finding.level == "warning"]


def _check_shown_folders() -> None:
    """Refuse folders whose names cannot be printed in a message or a command."""
    for variable, path in (("XDG_CACHE_HOME", cache_folder()), ("XDG_STATE_HOME", state_folder())):
        if not str(path).isprintable():
            cause = f"{variable}: {str(path)!r} has characters that cannot be shown"
            raise DeploymentError(cause, f"set {variable} to a folder with a plain name")
