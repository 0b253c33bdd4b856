"""What interrupted commands have left half-made in the cache, in ``dist`` and beside deployments.

Whoever makes something holds a lock beside it. If all locks of a folder can be had, nobody makes
anything in it, on no host that shares it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.checks.finding import Finding
from deploy.checks.locks import nobody_at_work
from deploy.environment.install import MARKER
from deploy.errors import KitError
from deploy.files import remove_folder
from deploy.paths import CHECKOUT, cache_folder, deployments_folder

SUBJECT = "leftovers"
_LOCKS = (".lock", "*.lock", "*/.lock", "*/*.lock")
# What deploy/files.py and Python's tempfile call things that are not finished.
_PARTIAL = (".*.partial", "*/.*.partial", "tmp????????", "*/tmp????????")


@dataclass(frozen=True)
class RemoveHalfBuilt:
    """Removes what nobody is making any more.

    Attributes:
        root: The folder that it lies in, somewhere.
        paths: What to remove.
    """

    root: Path
    paths: tuple[Path, ...]

    def apply(self) -> str:
        """Take all locks, look again, then remove what still is half-built."""
        with nobody_at_work(_locks(self.root)):
            for path in set(half_built(self.root)) & set(self.paths):
                if path.is_dir() and not path.is_symlink():
                    remove_folder(path)
                else:
                    path.unlink(missing_ok=True)
        left = [path for path in self.paths if path.exists()]
        if left:
            raise KitError(f"{left[0]} is no longer half-built, or cannot be removed")
        return f"removed {', '.join(map(str, self.paths))}"


def half_built_findings() -> Iterator[Finding]:
    """Return what is half-built and made by nobody at this moment."""
    for root in (cache_folder(), CHECKOUT / "dist", *sorted(deployments_folder().glob("*"))):
        paths = half_built(root)
        if not paths:
            continue
        try:
            with nobody_at_work(_locks(root)):
                pass
        except KitError:
            continue
        yield Finding(
            "warning",
            SUBJECT,
            f"half-built and left behind: {', '.join(map(str, paths))}",
            "python3 deploy/doctor.py --fix",
            RemoveHalfBuilt(root, paths),
        )


def half_built(root: Path) -> tuple[Path, ...]:
    """Return what in ``root`` has the names of unfinished things, or lacks what finished ones have.

    Args:
        root: The cache folder, an output folder, or a deployment's folder.
    """
    found = {path for pattern in _PARTIAL for path in root.glob(pattern)}
    environments = root / "environments"
    found |= {
        path
        for pattern in ("locked-*", "numl-*")
        for path in environments.glob(pattern)
        if not (path / MARKER).exists()
    }
    return tuple(sorted(found))


def _locks(root: Path) -> tuple[Path, ...]:
    return tuple(sorted({path for pattern in _LOCKS for path in root.glob(pattern)}))
