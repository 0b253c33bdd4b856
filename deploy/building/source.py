"""Which source a build is made from, and the time it is given."""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from deploy.errors import BuildError


@dataclass(frozen=True)
class Source:
    """The checkout that is built.

    Attributes:
        revision: The commit, with ``-dirty`` behind it if files were changed since;
            ``unknown`` outside of a git checkout.
        epoch: The time that everything in the artefacts is given, in seconds since 1970:
            ``SOURCE_DATE_EPOCH`` if set, else the commit's, else now.
        url: Where the repository is published; empty if it has no such remote.
    """

    revision: str
    epoch: int
    url: str


def find_source(checkout: Path) -> Source:
    """Return what ``checkout`` is.

    Raises:
        BuildError: If ``SOURCE_DATE_EPOCH`` is not a number.
    """
    commit = _git(checkout, "log", "-1", "--format=%H %ct").split()
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is not None and not given.isdecimal():
        raise BuildError(f"SOURCE_DATE_EPOCH={given!r} is not a number of seconds")
    epoch = int(given or (commit[1] if commit else time.time()))
    if not commit:
        return Source(revision="unknown", epoch=epoch, url="")
    dirty = "-dirty" if _git(checkout, "status", "--porcelain", "--untracked-files=no") else ""
    remote = _git(checkout, "config", "--get", "remote.origin.url")
    return Source(revision=commit[0] + dirty, epoch=epoch, url=published(remote))


def published(remote: str) -> str:
    """Return a remote as a URL without user and password; empty for a folder of this host."""
    found = re.fullmatch(r"(?:https?|ssh|git)://(?:[^@/]*@)?(.+)|[^@/:]+@([^:/]+):(.+)", remote)
    if found is None:
        return ""
    return f"https://{found[1] or f'{found[2]}/{found[3]}'}".removesuffix(".git")


def _git(checkout: Path, *words: str) -> str:
    try:
        # A checkout of another user is read all the same: nothing of it is executed.
        command = ["git", "-c", f"safe.directory={checkout}", "-C", str(checkout), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
