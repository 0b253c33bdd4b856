"""The .sif that a deployment runs: a copy of its own, named by its digest.

Whoever may write to the file that was named, or switches a link on the way to it, changes neither
what runs nor what is started again: a server that crashes comes back as it was.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from deploy.host.errors import LaunchError
from deploy.host.files import sha256_of, work_folder

_BLOCK = 1 << 20
_SUFFIX = ".sif"


def kept_at(folder: Path, digest: str) -> Path:
    """Return where a deployment's folder has its copy of the .sif with a digest."""
    return folder / f"{digest}{_SUFFIX}"


def keep(source: Path, digest: str, folder: Path) -> Path:
    """Copy a .sif into a deployment's folder, instead of those there; return the copy.

    Raises:
        LaunchError: It is not, or no longer, the one with this digest.
    """
    forget(folder)
    place, total = kept_at(folder, digest), hashlib.sha256()
    with work_folder(place) as scratch:
        partial = scratch / place.name
        with partial.open("wb") as copy, source.open("rb") as stream:
            while block := stream.read(_BLOCK):
                total.update(block)
                copy.write(block)
        if total.hexdigest() != digest:
            raise LaunchError(f"{source} was replaced meanwhile", "run the command again")
        partial.chmod(0o500)
        return partial.rename(place)


def check_kept(place: Path, digest: str) -> None:
    """Check that a copy is what was kept: it is read anew before each start.

    Raises:
        LaunchError: It has changed, or is gone.
    """
    try:
        found = sha256_of(place)
    except OSError as error:
        cause = f"{place}, the deployment's copy of its .sif: {error.strerror}"
    else:
        if found == digest:
            return
        cause = f"{place} is not the .sif that the deployment was started from: it has changed"
    remedy = "numlkit down, then numlkit up with the same file and flags, which copies it again"
    raise LaunchError(cause, remedy)


def forget(folder: Path) -> None:
    """Remove the copies in a deployment's folder."""
    for place in folder.glob(f"*{_SUFFIX}"):
        place.unlink(missing_ok=True)
