"""Can a server listen where a deployment wants it to?"""

from __future__ import annotations

from collections.abc import Iterator

from deploy.checks.deployments import living_server
from deploy.checks.finding import Finding, ok
from deploy.deployment import Deployment, Ports
from deploy.server.ports import choose_ports
from deploy.state import DeploymentFolder

SUBJECT = "ports"


def check_ports(deployment: Deployment) -> None:
    """Check that the ports are free, or the deployment's own server's.

    Raises:
        DeploymentError: Naming the taken port.
    """
    folder = DeploymentFolder(deployment.name)
    state = folder.state_here()
    # A server without a supervisor is stopped before another is started in its place.
    if state is None or living_server(folder, state) is None:
        _choose(deployment)


def port_findings(deployment: Deployment) -> Iterator[Finding]:
    """Return whether a server can listen there, and at which ports.

    Raises:
        DeploymentError: Naming the taken port.
    """
    folder = DeploymentFolder(deployment.name)
    state = folder.state_here()
    if state is not None and living_server(folder, state) is not None:
        there = state.ports.model_dump().values()
        yield ok(SUBJECT, f"{', '.join(map(str, there))}: the deployment's own")
        return
    ports = _choose(deployment).model_dump().values()
    yield ok(SUBJECT, f"{', '.join(map(str, ports))} on {deployment.listen} are free")


def _choose(deployment: Deployment) -> Ports:
    listen, ports = deployment.listen, deployment.ports
    return choose_ports(listen, ports, http_listen=deployment.http_listen)
