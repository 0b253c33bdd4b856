"""What doctor looks at on this host: GPUs, room, ports, certificates."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone

from deploy.deployment.deployment import Deployment
from deploy.deployment.ports import choose_ports
from deploy.deployment.state import DeploymentFolder, is_loopback
from deploy.engines.base import ROOM
from deploy.engines.choose import engine_named
from deploy.engines.resolved import Resolved
from deploy.host.console import as_time
from deploy.host.errors import BuildError, KitError
from deploy.host.finding import Finding, Level, ok, wrong
from deploy.host.gpu import GpuStack
from deploy.host.room import (
    Demand,
    Room,
    by_file_system,
    check_temporary_folder,
    check_writable,
    size,
)
from deploy.triton.advisories import DATE, summary

_GPU = "GPU"
_PORTS = "ports"
_TLS = "TLS"
_TRITON = "Triton"
_SOON = timedelta(days=30)


def gpu_findings(resolved: Resolved) -> Iterator[Finding]:
    found, wanted = resolved.gpus, resolved.deployment.flavour == "gpu"
    if isinstance(found, GpuStack):
        names = ", ".join(gpu.label for gpu in found.gpus) or "no usable GPU"
        yield ok(_GPU, f"NVIDIA driver {found.driver}: {names}")
        for broken in found.broken:
            yield Finding("warning", _GPU, broken.cause, broken.remedy)
    elif not wanted:
        yield ok(_GPU, f"{found.cause}; no GPU is requested")
    if not wanted:
        return
    try:
        plan = resolved.devices
    except KitError as error:
        yield wrong(_GPU, error)
        return
    for warning in plan.warnings:
        yield Finding("warning", _GPU, warning)
    yield ok(_GPU, f"up uses {', '.join(device.label for device in plan.devices)}")


def room_findings(rooms: Sequence[Room], more: Sequence[Room] = ()) -> Iterator[Finding]:
    """Return a finding per file system: a problem if ``rooms`` do not fit, else a warning."""
    for demand in by_file_system([*rooms, *more]):
        needed = Demand(tuple(room for room in demand.rooms if room in rooms), demand.free)
        if needed.bytes > demand.free:
            yield wrong(ROOM, needed.error())
        elif demand.bytes > demand.free:
            yield wrong(ROOM, demand.error(), "warning")
        else:
            folders = ", ".join(dict.fromkeys(str(room.folder) for room in demand.rooms))
            yield ok(ROOM, f"{size(demand.free)} free for {folders}")


def writable_findings(rooms: Sequence[Room], level: Level = "problem") -> Iterator[Finding]:
    for room in rooms:
        try:
            check_writable([room])
        except BuildError as error:
            yield wrong(ROOM, error, level)


def temporary_findings() -> Iterator[Finding]:
    for variable in ("TMPDIR", "APPTAINER_TMPDIR"):
        try:
            check_temporary_folder(variable)
        except BuildError as error:
            yield wrong(ROOM, error)


def port_findings(resolved: Resolved) -> Iterator[Finding]:
    """Return which ports a launch uses; DeploymentError if they are not free."""
    deployment = resolved.deployment
    folder = DeploymentFolder(deployment.name)
    state = folder.state_here()
    if state is not None and engine_named(state.engine).server(folder, state) is not None:
        # A server without a supervisor is stopped before another is started in its place.
        there = state.ports.model_dump().values()
        yield ok(_PORTS, f"{', '.join(map(str, there))}: the deployment's own")
        return
    ports = choose_ports(deployment, resolved.http_listen).model_dump().values()
    yield ok(_PORTS, f"{', '.join(map(str, ports))} on {deployment.listen} are free")


def tls_findings(deployment: Deployment) -> Iterator[Finding]:
    """Return findings about a deployment's certificate and key; none without TLS."""
    if deployment.tls is None:
        return
    from deploy.client.tls import check_server_files  # takes long, and few need it

    certificate = check_server_files(deployment.tls)
    end = certificate.not_after
    detail = f"{deployment.tls.cert} is valid until {as_time(end)}"
    if end - datetime.now(timezone.utc) < _SOON:
        yield Finding("warning", _TLS, detail, "renew it, then restart the deployment")
    else:
        yield ok(_TLS, detail)
    if not certificate.names:
        # Clients in Python and C++ then compare its common name, if it is no address; Go's do not.
        detail = (
            f"{deployment.tls.cert} has no subject alternative names: clients that connect by "
            "address reject it, and so do some that connect by name"
        )
        command = "openssl req -x509 ... -addext subjectAltName=DNS:HOST,IP:ADDRESS"
        yield Finding("warning", _TLS, detail, f"make one that has them: {command}")


def triton_findings(resolved: Resolved) -> Iterator[Finding]:
    """Return what is published about the Triton; a warning where others can reach the server."""
    deployment = resolved.deployment
    if deployment.image is not None and "triton" not in deployment.model_fields_set:
        return  # it has its own, and its own list
    known = summary(resolved.release)
    if known is None:
        detail = f"no published vulnerability of Triton {resolved.release.release} is known"
        yield ok(_TRITON, f"{detail} (as of {DATE})")
    elif is_loopback(deployment.listen):
        yield ok(_TRITON, known)
    else:
        yield Finding("warning", _TRITON, known, "--triton with a later release, or a front door")
