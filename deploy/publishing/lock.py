"""A lock in a folder that several hosts see.

A file that only one can make: unlike ``flock``, this holds on network file systems too.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from deploy.deployment.state import ProcessId
from deploy.host.command_line import quote
from deploy.host.errors import PublishError
from deploy.host.files import read_most

LOCK = ".numlkit.lock"
_LARGEST = 1 << 16


class Owner(BaseModel, frozen=True, extra="forbid"):
    """Who holds a lock.

    Attributes:
        started: When its process was started, in clock ticks since boot: ids are given again.
        boot: The boot of the host, and the namespace of process ids there.
        token: Tells this lock from all others.
    """

    host: str
    pid: Annotated[int, Field(ge=1, lt=1 << 31)]
    started: int
    boot: str
    namespace: str
    since: str
    token: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]

    @property
    def is_dead(self) -> bool:
        """Whether it is a process of this host that has ended."""
        if self.host != socket.gethostname():
            return False
        boot, namespace = _here()
        if self.boot != boot:
            return True
        if self.namespace != namespace:  # in another container there may be one of that number
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            # Others' processes, which /proc may hide (hidepid, proc(5)), have not ended for that.
            if not os.access(f"/proc/{self.pid}/stat", os.R_OK):
                return False
        return ProcessId(pid=self.pid, started=self.started).process() is None


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock for the block; what a dead process of this host left is taken over.

    Raises:
        PublishError: If somebody else holds it.
        OSError: If it cannot be written.
    """
    lock = folder / LOCK
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    process = ProcessId.of(os.getpid())
    boot, namespace = _here()
    own = Owner(
        host=socket.gethostname(),
        pid=process.pid,
        started=process.started,
        boot=boot,
        namespace=namespace,
        since=now,
        token=secrets.token_hex(8),
    )
    while not _made(lock, own):
        there = _owner(lock)
        if there is not None and there.is_dead and _taken_away(lock, there):
            continue
        who = f"process {there.pid} on {there.host}, since {there.since}" if there else "someone"
        raise PublishError(
            f"{folder} is being changed by {who}",
            f"wait until it has finished; if it was killed: rm {quote(str(lock))}",
        )
    try:
        # Whoever was killed while it took a dead one's lock away has left it aside.
        for aside in folder.glob(f"{LOCK}.*"):
            if (left := _owner(aside)) is not None and left.is_dead:
                aside.unlink(missing_ok=True)
        yield
    finally:
        if _owner(lock) == own:
            lock.unlink()


def _here() -> tuple[str, str]:
    """Return the host's boot, and the namespace of process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return boot, str(Path("/proc/self/ns/pid").readlink())


def _made(lock: Path, owner: Owner) -> bool:
    """Make the lock; return whether there was none."""
    try:
        stream = lock.open("x", encoding="utf-8")
    except FileExistsError:
        return False
    try:
        with stream:
            stream.write(owner.model_dump_json())
    except BaseException:  # a full disk, for one: an empty lock would be nobody's
        lock.unlink()
        raise
    return True


def _owner(lock: Path) -> Owner | None:
    """Return whose lock it is; None: there is none, or others have put something else there."""
    try:
        return Owner.model_validate_json(read_most(lock, _LARGEST))
    except (OSError, ValidationError):
        return None


def _taken_away(lock: Path, dead: Owner) -> bool:
    """Remove a dead owner's lock; return whether to try again."""
    aside = lock.with_name(f"{lock.name}.{dead.token}")
    try:
        lock.rename(aside)
    except FileNotFoundError:
        return True
    is_dead = _owner(aside) == dead
    if not is_dead:  # somebody else was faster, and has made a new one
        with suppress(OSError):
            os.link(aside, lock)
    aside.unlink(missing_ok=True)
    return is_dead
