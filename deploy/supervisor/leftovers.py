"""What a Triton leaves behind when it is killed, and how it is told from another's.

Seen with Triton 24.10: ``/dev/shm/<prefix><uuid>`` for each stub, a folder
``/tmp/python_env_XXXXXX`` for each server, and stubs that outlive it for a while.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

import psutil

from deploy.state import ProcessId

SHARED_MEMORY = Path("/dev/shm")
SCRATCH = Path("/tmp")  # Triton's Python backend ignores TMPDIR
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def shm_prefix(name: str) -> str:
    """Return the start of the names of the shared memory regions of deployment ``name``."""
    return f"numlkit-{os.getuid()}-{name}-"


def shared_memory_regions(prefix: str, folder: Path = SHARED_MEMORY) -> tuple[Path, ...]:
    """Return the regions whose names are ``prefix`` and a UUID, and nothing else."""
    return tuple(
        path
        for path in folder.glob(f"{prefix}*")
        if _UUID.fullmatch(path.name.removeprefix(prefix))
    )


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


def sweep(*, prefix: str, scratch: Iterable[Path], processes: Iterable[ProcessId]) -> None:
    """Remove what a server that is gone has left.

    Args:
        prefix: Start of the names of its shared memory regions.
        scratch: Its scratch folders.
        processes: Its stubs; those still alive are ended.
    """
    alive = [found for p in processes if (found := p.process()) is not None]
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
