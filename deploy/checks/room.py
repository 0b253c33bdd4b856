"""Is there room for what a launch, or a build, writes: on disks and in shared memory?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from deploy.building.preflight import (
    Demand,
    FileSystem,
    Room,
    by_file_system,
    check_temporary_folder,
    check_writable,
    file_system_of,
    size,
)
from deploy.checks.finding import Finding, Level, ok, wrong
from deploy.deployment import Deployment, EngineName
from deploy.engines.instances import choose_devices, count_instances
from deploy.engines.site import kits_flavour
from deploy.environment.lock import Flavour
from deploy.environment.standard import standard_environment
from deploy.errors import BuildError, EnvironmentSetupError, GpuError
from deploy.paths import cache_folder
from deploy.state import DeploymentFolder
from deploy.supervisor.leftovers import SHARED_MEMORY

SUBJECT = "room"
_MB = 10**6
# The environment takes 0.1 GB (1.3 with NuGraph's own packages, 5.6 for GPUs), and pip as much
# again while it unpacks; Triton 0.2.
_ENVIRONMENT_BYTES: dict[Flavour, int] = {
    "serving": 500 * _MB,
    "cpu": 3_000 * _MB,
    "gpu": 12_000 * _MB,
}
_LAUNCH_BYTES = 100 * _MB
_SHM_BYTES_PER_INSTANCE = 2 * _MB
_APPTAINER_TMPDIR = "APPTAINER_TMPDIR"  # Apptainer's own; it goes before TMPDIR
_MORE_SHARED_MEMORY = "fewer --instances, or doctor.py --fix if dead servers fill it"


def launch_rooms(deployment: Deployment, engine: EngineName) -> list[Room]:
    """Return what a launch writes on this host.

    Args:
        deployment: What is wanted.
        engine: What starts it.
    """
    state = DeploymentFolder(deployment.name).path
    rooms = [Room(state, _LAUNCH_BYTES, "the deployment", "set XDG_STATE_HOME")]
    # In a container only the import of a checkpoint needs one on this host.
    flavour: Flavour = kits_flavour(deployment) if engine == "local" else "serving"
    if (engine == "local" or deployment.checkpoints) and not _has_environment(flavour):
        needed, what = _ENVIRONMENT_BYTES[flavour], "the execution environment"
        rooms.append(Room(cache_folder(), needed, what, "set XDG_CACHE_HOME"))
    # Containers have their own: Apptainer's --containall, too, puts one there.
    if engine == "local":
        needed = _shared_bytes(deployment)
        rooms.append(Room(SHARED_MEMORY, needed, "the model instances", _MORE_SHARED_MEMORY))
    return rooms


def room_findings(
    rooms: Sequence[Room],
    more: Sequence[Room] = (),
    look: Callable[[Path], FileSystem] = file_system_of,
) -> Iterator[Finding]:
    """Return a finding for each file system that will be written to.

    Args:
        rooms: What must be there, or it is a problem.
        more: What is better there, or it is a warning.
        look: Finds a folder's file system.
    """
    for demand in by_file_system([*rooms, *more], look):
        needed = Demand(tuple(room for room in demand.rooms if room in rooms), demand.free)
        if needed.bytes > demand.free:
            yield wrong(SUBJECT, needed.error())
        elif demand.bytes > demand.free:
            yield wrong(SUBJECT, demand.error(), "warning")
        else:
            folders = ", ".join(dict.fromkeys(str(room.folder) for room in demand.rooms))
            yield ok(SUBJECT, f"{size(demand.free)} free for {folders}")


def writable_findings(rooms: Sequence[Room], level: Level = "problem") -> Iterator[Finding]:
    """Return a finding for each folder that this user can neither write to nor make.

    Args:
        rooms: What is written there.
        level: How bad that is.
    """
    for room in rooms:
        try:
            check_writable([room])
        except BuildError as error:
            yield wrong(SUBJECT, error, level)


def temporary_findings() -> Iterator[Finding]:
    """Return a problem for each variable that names no usable folder for temporary files."""
    for variable in ("TMPDIR", _APPTAINER_TMPDIR):
        try:
            check_temporary_folder(variable)
        except BuildError as error:
            yield wrong(SUBJECT, error)


def unpacking_findings() -> Iterator[Finding]:
    """Return a warning if Apptainer has no place to unpack a .sif, as where it cannot mount it."""
    try:
        check_temporary_folder(_APPTAINER_TMPDIR if os.environ.get(_APPTAINER_TMPDIR) else "TMPDIR")
    except BuildError as error:
        yield wrong(SUBJECT, error, "warning")


def container_memory_findings(deployment: Deployment) -> Iterator[Finding]:
    """Return a problem if a Docker container is to get too little shared memory."""
    needed, given = _shared_bytes(deployment), deployment.container_shm_bytes
    if given < needed:
        yield Finding(
            "problem",
            SUBJECT,
            f"the container is to have {size(given)} of shared memory, "
            f"the model instances need {size(needed)}",
            "--shm-size 1g, or fewer --instances",
        )


def instance_memory_findings(
    deployment: Deployment, look: Callable[[Path], FileSystem] = file_system_of
) -> Iterator[Finding]:
    """Return a warning if this host's shared memory is too small for a server from the .sif.

    ``up`` shuts an instance in, and Apptainer then gives it shared memory of its own. The same
    .sif started by hand uses the host's, unless it is shut in as well.
    """
    needed, free = _shared_bytes(deployment), look(SHARED_MEMORY).free
    if free < needed:
        yield Finding(
            "warning",
            SUBJECT,
            f"{SHARED_MEMORY} of this host has {size(free)} free, the model instances need "
            f"{size(needed)}: up gives them their own, apptainer run without --containall does not",
            _MORE_SHARED_MEMORY,
        )


def unused_findings(deployment: Deployment, engine: EngineName) -> Iterator[Finding]:
    """Return a warning if shared memory is asked for that the engine does not give."""
    if deployment.shm_size is not None and engine != "docker":
        yield Finding(
            "warning",
            SUBJECT,
            "shm_size is of no use: only a Docker container has shared memory of a chosen size, "
            f"and the engine is {engine}",
            "--engine docker, or leave it out",
        )


def _shared_bytes(deployment: Deployment) -> int:
    try:
        count = sum(count_instances(deployment, choose_devices(deployment)).values())
    except GpuError:  # another check's to say
        count = len(deployment.models)
    return count * _SHM_BYTES_PER_INSTANCE


def _has_environment(flavour: Flavour) -> bool:
    try:
        return standard_environment(flavour).packages.exists()
    except EnvironmentSetupError:  # another check's to say
        return True
