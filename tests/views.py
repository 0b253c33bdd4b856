"""A host as a test wants it: folders that are small and full, users who are not root."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.host.paths import CHECKOUT

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change what a process sees")
ORDINARY = "numlkit-test"
# Where the folders that are hidden can be seen meanwhile.
_ASIDE = "/mnt"


@dataclass(frozen=True)
class View:
    """A mount name space, which is there until the test ends.

    Attributes:
        pid: A process that lives in it.
    """

    pid: int

    @property
    def within(self) -> tuple[str, ...]:
        """The words before a command that is run in it, in the checkout."""
        enter = ("nsenter", "--target", str(self.pid), "--mount")
        return (*enter, "env", f"--chdir={CHECKOUT}")

    def path(self, path: Path) -> Path:
        """Return where this test finds what ``path`` is in it."""
        return Path(f"/proc/{self.pid}/root{path}")


@contextmanager
def view(*steps: str) -> Iterator[View]:
    """Make a mount name space.

    Args:
        steps: Commands of the shell that change what is seen in it.
    """
    script = " && ".join([*steps, "echo ready", "exec sleep infinity"])
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield View(process.pid)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def only(folder: Path, keep: Iterable[Path], options: str) -> Sequence[str]:
    """Return the steps that put an empty file system in a folder's place.

    Args:
        folder: The folder.
        keep: What stays to be seen, of what is below it.
        options: The new file system's (tmpfs).
    """
    steps = [f"mount --rbind {folder} {_ASIDE}", f"mount -t tmpfs -o {options} none {folder}"]
    for path in keep:
        if path.is_relative_to(folder):
            steps.append(f"mkdir -p {path}")
            steps.append(f"mount --rbind {_ASIDE}/{path.relative_to(folder)} {path}")
    return [*steps, f"umount -l {_ASIDE}"]


def opened(paths: Iterable[Path]) -> Sequence[str]:
    """Return the steps after which every user reaches ``paths``, and no more than these.

    On some hosts they lie in a home folder that is closed to others.
    """
    shut: dict[Path, list[Path]] = {}
    for path in (path.resolve() for path in paths):
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & 0o001:
                shut.setdefault(parent, []).append(path)
                break
    return [step for parent, kept in shut.items() for step in only(parent, kept, "mode=755")]


@dataclass(frozen=True)
class Account:
    """An ordinary user with a home folder for the test.

    Attributes:
        name: The user's name.
        uid: The user's id.
        gid: The group's.
        home: The home folder.
    """

    name: str
    uid: int
    gid: int
    home: Path

    def words(self, *groups: int) -> tuple[str, ...]:
        """Return the words before a command that this user runs.

        Args:
            groups: Further groups that the user is in.
        """
        in_groups = ",".join(map(str, groups))
        return (
            *("setpriv", "--reuid", str(self.uid), "--regid", str(self.gid)),
            *(("--groups", in_groups) if groups else ("--clear-groups",)),
            *("env", f"HOME={self.home}", f"USER={self.name}", f"XDG_CACHE_HOME={self.home}/cache"),
        )


def ordinary(name: str = ORDINARY) -> pwd.struct_passwd:
    """Return an ordinary user, made if need be."""
    with suppress(KeyError):
        return pwd.getpwnam(name)
    subprocess.run(["/usr/sbin/useradd", "--system", "--create-home", name], check=True)
    return pwd.getpwnam(name)


def account(home: Path, name: str) -> Account:
    """Return an ordinary user with the folder ``home`` as home."""
    found = ordinary(name)
    home.mkdir()
    os.chown(home, found.pw_uid, found.pw_gid)
    return Account(name, found.pw_uid, found.pw_gid, home)


def shared_cache(home: Path, cache: Path, names: Iterable[str], owner: Account) -> None:
    """Give a user a cache in which ``names`` are another's, to be read."""
    mine = home / "cache" / cache.name
    mine.mkdir(parents=True)
    for name in names:
        (mine / name).symlink_to(cache / name)
    for folder in (mine.parent, mine):
        os.chown(folder, owner.uid, owner.gid)


def python_folders() -> list[Path]:
    """Return the folders without which the Python that runs the tests does not start."""
    return [Path(sys.prefix), Path(sys.base_prefix)]


def docker_group() -> int | None:
    """Return the group that the Docker engine lets in; None if it has no socket here."""
    socket = Path("/var/run/docker.sock")
    return socket.stat().st_gid if socket.exists() and shutil.which("docker") else None
