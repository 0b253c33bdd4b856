"""Is there room for what a launch, or a build, writes: on disks and in shared memory?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from deploy.building.preflight import FileSystem, Room, file_system_of
from deploy.checks.finding import Finding, ok
from deploy.deployment import Deployment, EngineName
from deploy.environment.standard import standard_environment
from deploy.errors import EnvironmentSetupError
from deploy.paths import cache_folder
from deploy.state import DeploymentFolder
from deploy.supervisor.leftovers import SHARED_MEMORY

SUBJECT = "room"
_MB = 10**6
_GB = 10**9
# The environment takes 1.3 GB, and pip as much again while it unpacks; Triton 0.2 GB.
_ENVIRONMENT_BYTES = 3 * _GB
_LAUNCH_BYTES = 100 * _MB
_SHM_BYTES_PER_INSTANCE = 2 * _MB


def launch_rooms(deployment: Deployment, engine: EngineName) -> list[Room]:
    """Return what a launch writes on this host.

    Args:
        deployment: What is wanted.
        engine: What starts it.
    """
    state = DeploymentFolder(deployment.name).path
    rooms = [Room(state, _LAUNCH_BYTES, "the deployment", "set XDG_STATE_HOME")]
    if (engine == "local" or deployment.checkpoints) and not _has_environment(deployment):
        what = "the execution environment"
        rooms.append(Room(cache_folder(), _ENVIRONMENT_BYTES, what, "set XDG_CACHE_HOME"))
    if engine != "docker":  # whose containers have their own
        shared = "the model instances"
        rooms.append(Room(SHARED_MEMORY, _shared_bytes(deployment), shared, "fewer --instances"))
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
    systems: dict[int, FileSystem] = {}
    groups: dict[int, list[Room]] = {}
    for room in (*rooms, *more):
        system = look(room.folder)
        systems[system.device] = system
        groups.setdefault(system.device, []).append(room)
    for device, group in groups.items():
        free, names = systems[device].free, ", ".join(dict.fromkeys(str(r.folder) for r in group))
        needed = [room for room in group if room in rooms]
        if sum(room.bytes for room in needed) > free:
            yield _too_small("problem", needed, free)
        elif sum(room.bytes for room in group) > free:
            yield _too_small("warning", group, free)
        else:
            yield ok(SUBJECT, f"{size(free)} free for {names}")


def writable_findings(rooms: Sequence[Room]) -> Iterator[Finding]:
    """Return a problem for each folder that this user can neither write to nor make."""
    for room in rooms:
        there = next(path for path in (room.folder, *room.folder.parents) if path.exists())
        if not there.is_dir() or (room.folder == SHARED_MEMORY != there):
            detail = f"{room.folder} is not a folder: no place for {room.purpose}"
        elif not os.access(there, os.W_OK | os.X_OK):
            detail = f"{there} cannot be written to: no place for {room.purpose}"
        else:
            continue
        yield Finding("problem", SUBJECT, detail, room.setting)


def temporary_findings() -> Iterator[Finding]:
    """Return a problem if TMPDIR names no usable folder.

    Python would quietly take another one, and the programs that it starts would not.
    """
    named = os.environ.get("TMPDIR")
    if named and not os.access(Path(named, "."), os.W_OK | os.X_OK):
        detail = f"TMPDIR={named} is not a folder that can be written to"
        yield Finding("problem", SUBJECT, detail, "set TMPDIR to one, or unset it")


def container_memory_findings(deployment: Deployment) -> Iterator[Finding]:
    """Return a problem if a Docker container is to get too little shared memory."""
    needed = _shared_bytes(deployment)
    if deployment.shm_size < needed:
        yield Finding(
            "problem",
            SUBJECT,
            f"the container is to have {size(deployment.shm_size)} of shared memory, "
            f"the model instances need {size(needed)}",
            "--shm-size 1g, or fewer --instances",
        )


def size(count: int) -> str:
    """Return a number of bytes as a person writes it."""
    return f"{count / _GB:.1f} GB" if count >= _GB else f"{count / _MB:.0f} MB"


def _too_small(level: str, group: Sequence[Room], free: int) -> Finding:
    needed = size(sum(room.bytes for room in group))
    parts = ", ".join(f"{size(r.bytes)} in {r.folder} for {r.purpose}" for r in group)
    settings = "; ".join(dict.fromkeys(room.setting for room in group))
    return Finding(
        level,  # type: ignore[arg-type]
        SUBJECT,
        f"{size(free)} free, {needed} needed: {parts}",
        f"free space there (df -h {group[0].folder}), or use a larger disk: {settings}",
    )


def _shared_bytes(deployment: Deployment) -> int:
    return len(deployment.models) * deployment.instance_count() * _SHM_BYTES_PER_INSTANCE


def _has_environment(deployment: Deployment) -> bool:
    try:
        return standard_environment(deployment.flavour).packages.exists()
    except EnvironmentSetupError:
        return True  # what is wrong with it is another check's to say
