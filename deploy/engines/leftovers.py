"""What a Triton leaves behind when it is killed, and how to tell whose it is.

Seen with Triton 24.10: ``/dev/shm/<prefix><uuid>`` for each stub, a folder
``/tmp/python_env_XXXXXX`` for each server, and stubs that outlive it for a while.

A scratch folder does not say whose it is. It is taken to be a server's if it was made after that
server started, is not known to be another deployment's, and no other process that might have made
it is alive. So a folder may be left behind, but a live server's is never removed. One that no
deployment's state names may be of a Triton that is not the kit's: doctor does not touch it.
A region of shared memory is unused if no process has it mapped, whichever server made it.
"""

import hashlib
import os
import platform
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

import psutil

from deploy.deployment.state import DeploymentFolder, ProcessId, Surroundings, known_deployments
from deploy.host.console import counted
from deploy.host.errors import DeploymentError, KitError
from deploy.host.files import locked, remove_folder
from deploy.host.finding import Finding
from deploy.host.paths import state_folder
from deploy.triton.stub import STUB

SHARED_MEMORY = Path("/dev/shm")
SCRATCH = Path("/tmp")  # Triton's Python backend ignores TMPDIR
FIX = "numlkit doctor --fix"
LEFTOVERS = "leftovers"  # the subject of findings
_STUBS = ("model process", "model processes")
# A region is created a moment before it is mapped.
_OLD_ENOUGH_S = 60
_END_S = 5
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel's proc_ns.h
_OUTSIDE = "numlkit doctor --fix outside this container, where all processes can be seen"
# mkdtemp's name, and the folders in it, one for each packed environment.
_SCRATCH = re.compile(r"python_env_[A-Za-z0-9]{6}")
_BACKEND = b"/libtriton_python.so"  # the Python backend, in a process's memory map
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# STUB .../MODEL/VERSION/model.py REGION ..., or a shell that is about to start it.
_STUB = re.compile(rf"/{STUB} .+? (\S+-{_UUID.pattern})")


def shm_prefix(folder: Path) -> str:
    """Return the start of the names of a deployment's shared memory regions.

    Args:
        folder: The deployment's folder. A user may have several state folders, and in each a
            deployment of the same name.
    """
    where = hashlib.sha256(os.fsencode(folder.parent.resolve())).hexdigest()[:8]
    return f"numlkit-{os.getuid()}-{where}-{folder.name}-"


def shared_memory_regions(prefix: str) -> tuple[Path, ...]:
    """Return this user's regions whose names are exactly ``prefix`` and a UUID."""
    return tuple(_own_regions(re.escape(prefix)))


def _own_regions(prefix: str) -> dict[Path, os.stat_result]:
    found, names = {}, re.compile(prefix + _UUID.pattern)
    for path in SHARED_MEMORY.glob("*"):
        with suppress(FileNotFoundError):
            facts = path.lstat()
            own = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid()
            if own and names.fullmatch(path.name):
                found[path] = facts
    return found


def _stubs() -> Iterator[tuple[psutil.Process, str]]:
    """Yield this user's live and starting stubs, each with its shared memory region's name."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found = _STUB.search(" ".join(process.cmdline()))
            if found is not None and process.uids().real == os.getuid():
                yield process, found[1]


def stubs_at(prefix: str) -> list[psutil.Process]:
    """Return this user's live stubs whose regions have ``prefix``.

    A stub that was starting when its server was killed waits for it forever.
    """
    return [
        process
        for process, region in _stubs()
        if region.startswith(prefix) and _UUID.fullmatch(region.removeprefix(prefix))
    ]


def scratch_folders() -> frozenset[Path]:
    return frozenset(path for path in SCRATCH.glob("python_env_*") if _is_scratch(path))


def _is_scratch(path: Path) -> bool:
    """Return whether a folder is this user's, and is named and filled as a Python backend does."""
    with suppress(OSError):
        facts = path.lstat()
        own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
        if own and _SCRATCH.fullmatch(path.name):
            return all(entry.name.isdecimal() and entry.is_dir() for entry in path.iterdir())
    return False


def backend_processes() -> frozenset[ProcessId]:
    """Return this user's processes with a Python backend, the kit's or not.

    A container's are included only if it shares this host's ``/tmp``. Not included is what such a
    process has just forked: it is to become a stub, and has the server's memory until then.
    """
    parents: dict[ProcessId, int] = {}
    for pid in psutil.pids():
        process = Path(f"/proc/{pid}")
        with suppress(OSError, psutil.NoSuchProcess):
            own = process.stat().st_uid == os.getuid()
            loaded = own and _BACKEND in (process / "maps").read_bytes()
            if loaded and SCRATCH.samefile(f"{process}/root/{SCRATCH}"):
                identity = ProcessId.of(pid)
                parents[identity] = psutil.Process(pid).ppid()
    servers = {identity.pid for identity in parents}
    return frozenset(each for each, parent in parents.items() if parent not in servers)


def taking_turns() -> AbstractContextManager[None]:
    """Return the lock that is held while a server starts and makes its scratch folder.

    That is in this host's /tmp; the lock may lie where many hosts see it.
    """
    return locked(state_folder() / f"start-{platform.node()}.lock")


def look_around() -> Surroundings:
    # In this order: a backend makes its folder as soon as it is loaded.
    processes = backend_processes()
    return Surroundings(folders=tuple(scratch_folders()), processes=tuple(processes))


def scratch_since(before: Surroundings, server: ProcessId | None) -> frozenset[Path]:
    """Return the scratch folders that only this server can have made since.

    Empty if another living process may have made one of them. ``server`` is None if it died before
    its process was known.
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
    """Remove what a dead server left behind: stubs, shared memory, scratch folders."""
    _kill(stubs_at(prefix))
    for region in shared_memory_regions(prefix):
        region.unlink(missing_ok=True)
    for folder in filter(_is_scratch, scratch):
        shutil.rmtree(folder, ignore_errors=True)


def _kill(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Kill processes; return those that have not ended in time."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return list(psutil.wait_procs(processes, timeout=_END_S)[1])


def end_stubs(stubs: tuple[ProcessId, ...]) -> str:
    orphans = set(orphaned_stubs()) & set(stubs)
    processes = [found for stub in orphans if (found := stub.process()) is not None]
    if left := _kill(processes):
        raise KitError(f"process {left[0].pid} does not exit")
    return f"stopped {counted(len(processes), *_STUBS)} without a server"


def remove_regions(regions: tuple[Path, ...]) -> str:
    done = f"removed {counted(len(regions), 'shared memory region')} from {SHARED_MEMORY}"
    return remove_leftovers(regions, unused_regions, done)


def remove_leftovers(
    found: tuple[Path, ...], look: Callable[[], Iterable[Path]], done: str | None = None
) -> str:
    """Remove what was found and is still there; return what was done (``done`` if given).

    Raises:
        KitError: Naming one that was not removed.
    """
    for path in set(look()) & set(found):
        if path.is_dir() and not path.is_symlink():
            remove_folder(path)
        else:
            path.unlink(missing_ok=True)
    left = [path for path in found if path.exists()]
    if left:
        raise KitError(f"{left[0]} is in use again, was finished meanwhile, or cannot be removed")
    return done or f"removed {', '.join(map(str, found))}"


def leftover_findings() -> Iterator[Finding]:
    if stubs := orphaned_stubs():
        numbers = ", ".join(str(stub.pid) for stub in stubs)
        detail = f"{counted(len(stubs), *_STUBS)} whose server is dead: {numbers}"
        yield _left_behind(detail, partial(end_stubs, stubs))
    if regions := unused_regions():
        size = sum(region.stat().st_blocks * 512 for region in regions) / 1e6
        what = counted(len(regions), "shared memory region")
        detail = f"{what} of dead servers in {SHARED_MEMORY}"
        yield _left_behind(f"{detail} ({size:.0f} MB)", partial(remove_regions, regions))


def _left_behind(detail: str, fix: Callable[[], str]) -> Finding:
    if sees_all_processes():
        return Finding("problem", LEFTOVERS, detail, FIX, fix)
    return Finding("problem", LEFTOVERS, detail, _OUTSIDE)


def sees_all_processes() -> bool:
    """Return whether all processes of the host are visible, as they are not in a container."""
    return str(Path("/proc/self/ns/pid").readlink()) == f"pid:[{_FIRST_PID_NAMESPACE}]"


def orphaned_stubs() -> tuple[ProcessId, ...]:
    """Return this user's stubs of kit servers that are dead."""
    found = []
    for process, region in _stubs():
        with suppress(psutil.Error):
            parent = process.parent()
            orphan = parent is None or parent.name() != "tritonserver"
            if orphan and region.startswith(f"numlkit-{os.getuid()}-"):
                found.append(ProcessId.of(process.pid))
    return tuple(found)


def unused_regions() -> tuple[Path, ...]:
    """Return this user's regions of kit servers that no server or live stub has mapped.

    Empty if the memory map of one of this user's Tritons cannot be read.
    """
    old = time.time() - _OLD_ENOUGH_S
    regions = _own_regions(f"numlkit-{os.getuid()}-.+-").items()
    # By their names, which are unique: a container may see the folder elsewhere.
    names = {path.name.encode(): path for path, facts in regions if facts.st_mtime < old}
    orphans = {stub.pid for stub in orphaned_stubs()}
    for mapped in _maps_of_this_user(orphans) if names else ():
        if mapped is None:
            return ()
        for name in [name for name in names if name in mapped]:
            del names[name]
    return tuple(sorted(names.values()))


def _maps_of_this_user(without: Set[int]) -> Iterator[bytes | None]:
    """Yield each process's memory map; None for a Triton whose map cannot be read.

    Only a server and its stubs map the regions of a Python backend.
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
