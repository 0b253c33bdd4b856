"""Remove old builds from the cache: environments and wheels of ``numl_serving``."""

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from deploy.host.files import unless_locked

KEPT = 3
"""How many environments of each kind stay, and how many wheels of ``numl_serving``."""

RECENT_S = 3600.0
"""Whatever was taken so recently stays, too: another build may still read it."""


def clear_cache(cache: Path) -> tuple[list[str], int]:
    """Remove all but the :data:`KEPT` last used of each kind, and what another build may use.

    Environments that servers run in are not touched. Returns the paths removed, relative to the
    cache, and the bytes freed.
    """
    names: list[str] = []
    freed = 0
    relocatable = list(_folders(cache / "relocatable"))
    packages = [path for path in relocatable if "-packages-" in path.name]
    whole = [path for path in relocatable if path not in packages]
    agents = list(_folders(cache / "sync"))
    for kind in (whole, packages, agents, list(_folders(cache / "serving"))):
        for folder in sorted(kind, key=_last_use, reverse=True)[KEPT:]:
            if time.time() - _last_use(folder) < RECENT_S:
                continue
            with unless_locked(_lock_of(folder)) as free:
                if free:
                    facts = [path.lstat() for path in folder.rglob("*") if not path.is_dir()]
                    # A hard link to a file that stays frees nothing.
                    freed += sum(each.st_size for each in facts if each.st_nlink == 1)
                    shutil.rmtree(folder, ignore_errors=True)
                    names.append(folder.relative_to(cache).as_posix())
    return names, freed


def _folders(folder: Path) -> Iterator[Path]:
    """Yield what builds have made: each has its lock beside it, which nobody else makes."""
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink() and _lock_of(path).exists():
                yield path


def _last_use(path: Path) -> float:
    # Whoever takes a lock touches it.
    with suppress(FileNotFoundError):
        return _lock_of(path).stat().st_mtime
    return 0


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")  # a name may have dots
