"""What a Triton leaves behind when it is killed, and how it is told from another's.

Seen with Triton 24.10: ``/dev/shm/<prefix><uuid>`` for each stub, a folder
``/tmp/python_env_XXXXXX`` for each server, and stubs that outlive it for a while.

A scratch folder does not tell whose it is. It is taken for a server's if it was made after
that server's start, is not known to be another deployment's, and no other process that might
have made it is alive. So a folder may stay behind, but a living server's is never removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import psutil

from deploy.errors import DeploymentError
from deploy.files import locked
from deploy.paths import state_folder
from deploy.state import DeploymentFolder, ProcessId, Surroundings, known_deployments
from deploy.supervisor.stubs import STUB

SHARED_MEMORY = Path("/dev/shm")
SCRATCH = Path("/tmp")  # Triton's Python backend ignores TMPDIR
_BACKEND = b"/libtriton_python.so"  # the Python backend, in a process's memory map
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def shm_prefix(folder: Path) -> str:
    """Return the start of the names of a deployment's shared memory regions.

    Args:
        folder: The deployment's folder. A user may have several state folders, and in each a
            deployment of the same name.
    """
    where = hashlib.sha256(os.fsencode(folder.parent.resolve())).hexdigest()[:8]
    return f"numlkit-{os.getuid()}-{where}-{folder.name}-"


def shared_memory_regions(prefix: str, folder: Path = SHARED_MEMORY) -> tuple[Path, ...]:
    """Return this user's regions whose names are ``prefix`` and a UUID, and nothing else."""
    found = []
    for path in folder.glob(f"{prefix}*"):
        with suppress(FileNotFoundError):
            own = path.lstat().st_uid == os.getuid()
            if own and _UUID.fullmatch(path.name.removeprefix(prefix)):
                found.append(path)
    return tuple(found)


def stubs_at(prefix: str) -> list[psutil.Process]:
    """Return this user's living stubs whose regions have ``prefix``: orphans without a server.

    One that was about to start when its server was killed waits for it for ever.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.uids().real != os.getuid():
                continue
            command = process.cmdline()
        except psutil.Error:
            continue
        # STUB .../model.py REGION ...
        if len(command) < 3 or Path(command[0]).name != STUB:
            continue
        if command[2].startswith(prefix) and _UUID.fullmatch(command[2].removeprefix(prefix)):
            found.append(process)
    return found


def scratch_folders(folder: Path = SCRATCH) -> frozenset[Path]:
    """Return the folders of this user that Python backends have made."""
    found = set()
    for path in folder.glob("python_env_*"):
        try:
            facts = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid():
            found.add(path)
    return frozenset(found)


def backend_processes() -> frozenset[ProcessId]:
    """Return the processes of this user that run a Python backend, the kit's or not.

    A container's are among them only if they share this host's folder for scratch folders.
    """
    found = set()
    for pid in psutil.pids():
        process = Path(f"/proc/{pid}")
        try:
            if process.stat().st_uid != os.getuid():
                continue
            loaded = _BACKEND in (process / "maps").read_bytes()
            if loaded and SCRATCH.samefile(f"{process}/root/{SCRATCH}"):
                found.add(ProcessId.of(pid))
        except (OSError, psutil.NoSuchProcess):
            continue
    return frozenset(found)


def taking_turns() -> AbstractContextManager[None]:
    """Return the lock under which servers are started and their scratch folders are told apart."""
    return locked(state_folder() / "start.lock")


def look_around() -> Surroundings:
    """Return which scratch folders and backends there are now."""
    # In this order: a backend makes its folder as soon as it is loaded.
    processes = backend_processes()
    return Surroundings(folders=tuple(scratch_folders()), processes=tuple(processes))


def scratch_since(before: Surroundings, server: ProcessId | None) -> frozenset[Path]:
    """Return the scratch folders that only a server that was started then can have made.

    Empty if another process may have made one of them: if it lives, it needs it.

    Args:
        before: What there was before the server's start.
        server: The server; None if its number is not known and it is dead.
    """
    folders = scratch_folders() - set(before.folders)
    others = backend_processes() - set(before.processes) - {server}
    for name in known_deployments():
        try:
            state = DeploymentFolder(name).state()
        except DeploymentError:
            continue
        if state is not None and state.scratch:
            folders -= set(state.scratch)
            others -= {state.server}
    return frozenset() if others else folders


def sweep(*, prefix: str, scratch: Iterable[Path]) -> None:
    """Remove what a server that is gone has left: stubs, shared memory, scratch folders.

    Args:
        prefix: Start of the names of its shared memory regions.
        scratch: Its scratch folders.
    """
    alive = stubs_at(prefix)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=5)
    for region in shared_memory_regions(prefix):
        region.unlink(missing_ok=True)
    for folder in scratch:
        shutil.rmtree(folder, ignore_errors=True)
