"""All checks, in the order in which doctor shows them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.building.preflight import Room
from deploy.building.request import BuildRequest, room_needed
from deploy.checks.containers import container_findings, instance_findings
from deploy.checks.deployments import deployment_findings
from deploy.checks.engines import apptainer_findings, docker_findings
from deploy.checks.environment import environment_findings
from deploy.checks.examine import Check, examine
from deploy.checks.finding import Finding, Level, ok
from deploy.checks.gpu import gpu_findings
from deploy.checks.half_built import half_built_findings
from deploy.checks.leftovers import leftover_findings
from deploy.checks.ports import port_findings
from deploy.checks.repository import repository_findings, site_findings
from deploy.checks.room import (
    container_memory_findings,
    instance_memory_findings,
    launch_rooms,
    room_findings,
    temporary_findings,
    unused_findings,
    writable_findings,
)
from deploy.checks.tls import tls_findings
from deploy.deployment import Deployment, EngineName
from deploy.engines.choose import choose_engine, engine_named
from deploy.engines.own_weights import own_weights
from deploy.engines.site import kit_models
from deploy.errors import KitError
from deploy.images.engine import connect, storage_folder
from deploy.paths import CHECKOUT, MODEL_REPOSITORY, cache_folder
from deploy.server.release import find_release

_MB = 10**6


def examine_everything(deployment: Deployment) -> list[Finding]:
    """Return what is right and wrong with this host, for a deployment and in general.

    Args:
        deployment: What somebody wants to start, or has started.
    """
    chosen: list[EngineName] = []

    def choose() -> Iterator[Finding]:
        choice = choose_engine(deployment)
        chosen.append(choice.engine.name)
        why = f": {choice.reason}" if choice.reason is not None else ", as asked for"
        yield ok("engine", f"up starts deployment {deployment.name} with {chosen[0]}{why}")

    found = examine([Check("engine", choose)])
    engine = chosen[0] if chosen else None

    def level(name: EngineName) -> Level:
        return "problem" if name == engine else "warning"

    checks = [
        Check("engine docker", lambda: docker_findings(deployment, level("docker"))),
        Check("engine apptainer", lambda: apptainer_findings(deployment, level("apptainer"))),
        Check("engine local", lambda: environment_findings(deployment, level("local"))),
        Check("GPU", lambda: gpu_findings(deployment)),
        Check("room", lambda: _rooms(deployment, engine or "local")),
        Check("ports", lambda: port_findings(deployment)),
        Check(
            "model repository",
            lambda: repository_findings(
                MODEL_REPOSITORY, kit_models(deployment), own_weights(deployment)
            ),
        ),
        Check("model repository", lambda: site_findings(deployment)),
        Check("TLS", lambda: tls_findings(deployment)),
        Check("deployments", deployment_findings),
    ]
    left_behind = [
        Check("leftovers", leftover_findings),
        Check("leftovers: containers", container_findings),
        Check("leftovers: instances", instance_findings),
        Check("leftovers: half-built", half_built_findings),
    ]
    found += examine([*checks, *left_behind])
    if not any(finding.subject.startswith("leftovers") for finding in found):
        found.append(ok("leftovers", "none of dead servers or interrupted commands"))
    return found


def _rooms(deployment: Deployment, engine: EngineName) -> Iterator[Finding]:
    rooms = launch_rooms(deployment, engine)
    cache = Room(cache_folder(), 100 * _MB, "the cache", "set XDG_CACHE_HOME")
    yield from writable_findings(rooms)
    # A launch that finds everything made there, as by an administrator, does not write to it.
    if all(room.folder != cache.folder for room in rooms):
        yield from writable_findings([cache], "warning")
    yield from temporary_findings()
    more = [
        cache,
        Room(Path(tempfile.gettempdir()), 100 * _MB, "temporary files", "set TMPDIR"),
        Room(CHECKOUT / "dist", 500 * _MB, "what a build makes", "name another --out"),
    ]
    images = _image_folder() if engine == "docker" else None
    if images is not None:
        data_root = "set data-root in /etc/docker/daemon.json"
        rooms.append(Room(images, 100 * _MB, "the container", data_root, ours=False))
    if engine != "local" and not _is_built(deployment, engine):
        more += _build_rooms(deployment, engine, images)
    yield from room_findings(rooms, more)
    if engine == "docker":
        yield from container_memory_findings(deployment)
    if engine == "apptainer":
        yield from instance_memory_findings(deployment)
    yield from unused_findings(deployment, engine)


def _image_folder() -> Path | None:
    """Return where the Docker engine keeps its images; None if there is none on this host."""
    try:
        client = connect()
    except KitError:
        return None
    try:
        return storage_folder(client)
    finally:
        client.close()


def _is_built(deployment: Deployment, engine: EngineName) -> bool:
    try:
        engine_named(engine).artefact(deployment=deployment)
    except KitError:
        return False
    return True


def _build_rooms(deployment: Deployment, engine: EngineName, images: Path | None) -> Sequence[Room]:
    """Return what a build of the image that the engine starts would use."""
    request = BuildRequest(
        targets=("image",) if engine == "docker" else ("sif",),
        flavour=deployment.flavour,
        base="slim",
        base_digest=None,
        triton=find_release(deployment.triton),
        wheels=None,
        python=None,
        out=CHECKOUT / "dist",
        wire=None,
        compressor="zstd",
    )
    return room_needed(
        request,
        route="docker" if images is not None else "apptainer",
        engine_folder=images,
        temporary=Path(tempfile.gettempdir()),
        wheels_there=False,
    )
