"""What dead servers have left in shared memory and in /tmp, told from what the living use.

The rules are those of :mod:`deploy.supervisor.leftovers`; a region of shared memory is nobody's if
no process has it in its memory, whichever state folder its server had.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.checks.finding import Finding
from deploy.errors import KitError
from deploy.state import ProcessId, Surroundings
from deploy.supervisor.leftovers import SHARED_MEMORY, scratch_since, taking_turns
from deploy.supervisor.stubs import STUB

SUBJECT = "leftovers"
# A region is made a moment before it is mapped.
_OLD_ENOUGH_S = 60
_END_S = 5
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel's proc_ns.h
_NOTHING_BEFORE = Surroundings(folders=(), processes=())
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_REMEDY = "python3 deploy/doctor.py --fix"
_OUTSIDE = "doctor.py --fix outside of this container, where all that may use them can be seen"


@dataclass(frozen=True)
class EndStubs:
    """Ends model processes whose server is dead: nobody can ask them anything any more.

    Attributes:
        stubs: The processes.
    """

    stubs: tuple[ProcessId, ...]

    def apply(self) -> str:
        """Look again, then end those that still have no server."""
        orphans = set(orphaned_stubs()) & set(self.stubs)
        processes = [found for stub in orphans if (found := stub.process()) is not None]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _, left = psutil.wait_procs(processes, timeout=_END_S)
        if left:
            raise KitError(f"process {left[0].pid} does not end")
        return f"ended {len(self.stubs)} model processes without a server"


@dataclass(frozen=True)
class RemoveRegions:
    """Removes shared memory regions that no process uses.

    Attributes:
        regions: The regions.
    """

    regions: tuple[Path, ...]

    def apply(self) -> str:
        """Look again, then remove those that still are nobody's."""
        for region in set(unused_regions()) & set(self.regions):
            region.unlink(missing_ok=True)
        left = [region for region in self.regions if region.exists()]
        if left:
            raise KitError(f"{len(left)} shared memory regions are in use again: {left[0]}")
        return f"removed {len(self.regions)} shared memory regions from {SHARED_MEMORY}"


@dataclass(frozen=True)
class RemoveScratch:
    """Removes scratch folders of Python backends of which none lives.

    Attributes:
        folders: The folders.
    """

    folders: tuple[Path, ...]

    def apply(self) -> str:
        """Look again while nothing is being started, then remove what still is nobody's."""
        with taking_turns():
            for folder in scratch_since(_NOTHING_BEFORE, None) & set(self.folders):
                shutil.rmtree(folder, ignore_errors=True)
        left = [folder for folder in self.folders if folder.exists()]
        if left:
            raise KitError(f"{left[0]} may be in use again, or cannot be removed")
        return f"removed {', '.join(map(str, self.folders))}"


def leftover_findings() -> Iterator[Finding]:
    """Return what of shared memory and scratch folders is nobody's."""
    fixable = sees_all_processes()
    stubs = orphaned_stubs()
    if stubs:
        numbers = ", ".join(str(stub.pid) for stub in stubs)
        yield Finding(
            "problem",
            SUBJECT,
            f"{len(stubs)} model processes whose server is dead: {numbers}",
            _REMEDY if fixable else _OUTSIDE,
            EndStubs(stubs) if fixable else None,
        )
    regions = unused_regions()
    if regions:
        size = sum(region.stat().st_blocks * 512 for region in regions)
        yield Finding(
            "problem",
            SUBJECT,
            f"{len(regions)} shared memory regions of dead servers in {SHARED_MEMORY} "
            f"({size / 1e6:.0f} MB)",
            _REMEDY if fixable else _OUTSIDE,
            RemoveRegions(regions) if fixable else None,
        )
    folders = tuple(sorted(scratch_since(_NOTHING_BEFORE, None)))
    if folders:
        yield Finding(
            "problem",
            SUBJECT,
            f"scratch folders of dead servers: {', '.join(map(str, folders))}",
            _REMEDY if fixable else _OUTSIDE,
            RemoveScratch(folders) if fixable else None,
        )


def sees_all_processes() -> bool:
    """Return whether no process of this host is hidden from this one, as from a container."""
    return str(Path("/proc/self/ns/pid").readlink()) == f"pid:[{_FIRST_PID_NAMESPACE}]"


def orphaned_stubs() -> tuple[ProcessId, ...]:
    """Return this user's stubs of the kit's servers whose server is dead."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            # STUB .../MODEL/VERSION/model.py REGION ...
            is_stub = len(command) > 2 and Path(command[0]).name == STUB
            if not is_stub or not command[2].startswith(f"numlkit-{os.getuid()}-"):
                continue
            parent = process.parent()
            if process.uids().real == os.getuid() and (
                parent is None or parent.name() != "tritonserver"
            ):
                found.append(ProcessId.of(process.pid))
        except psutil.Error:
            continue
    return tuple(found)


def unused_regions(folder: Path = SHARED_MEMORY) -> tuple[Path, ...]:
    """Return this user's regions of the kit's servers that no process uses that has a server.

    None if a Triton of this user does not tell what it has in its memory.
    """
    named = re.compile(rf"numlkit-{os.getuid()}-.+-{_UUID}")
    old = time.time() - _OLD_ENOUGH_S
    candidates = set()
    for path in folder.glob(f"numlkit-{os.getuid()}-*"):
        with suppress(FileNotFoundError):
            facts = path.lstat()
            mine = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid()
            if mine and facts.st_mtime < old and named.fullmatch(path.name):
                candidates.add(path)
    # By their names, which are unique: a container may see the folder elsewhere.
    names = {path.name.encode(): path for path in candidates}
    orphans = {stub.pid for stub in orphaned_stubs()}
    for mapped in _maps_of_this_user(orphans) if candidates else ():
        if mapped is None:
            return ()
        for name in [name for name in names if name in mapped]:
            del names[name]
    return tuple(sorted(names.values()))


def _maps_of_this_user(without: Set[int]) -> Iterator[bytes | None]:
    """Yield what each process has in its memory; None for a Triton's that does not tell.

    The regions of a Python backend are in the memory of its server and its stubs only.
    """
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) not in without and process.stat().st_uid == os.getuid():
                yield (process / "maps").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            if _is_triton(process):
                yield None


def _is_triton(process: Path) -> bool:
    try:
        return b"triton" in (process / "cmdline").read_bytes()
    except OSError:
        return True
