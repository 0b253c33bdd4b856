"""Clear the cache of what older builds left in it: environments, packages, wheels.

Whatever is removed can be made again. The newest stay, by the time of their last use: of a
build that runs meanwhile, the environment is among them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deploy.files import unless_locked
from deploy.packing.packages import UNPACKED

KEPT = 3
"""Environments that stay, sets of wheels, and wheels of ``numl_serving``."""


@dataclass(frozen=True)
class Removed:
    """What was removed.

    Attributes:
        names: Paths below the cache folder.
        bytes: What that has freed.
    """

    names: tuple[str, ...]
    bytes: int


def clear_cache(cache: Path) -> Removed:
    """Remove what is not needed by the :data:`KEPT` environments that were used last.

    Args:
        cache: The kit's cache folder.
    """
    names: list[str] = []
    freed = 0
    for folder in _older(cache / "prefixes"):
        with unless_locked(folder.with_suffix(".lock")) as free:
            if free:
                freed += _remove(folder)
                names.append(_name(folder, cache))
    needed = set(_needed(cache / "prefixes"))
    for recipe in _folders(cache / "packages"):
        with unless_locked(recipe.with_suffix(".lock")) as free:
            if free and (recipe / UNPACKED).is_dir():
                for package in _folders(recipe / UNPACKED):
                    if package not in needed:
                        freed += _remove_package(recipe, package)
                        names.append(_name(package, cache))
                if not any(_folders(recipe / UNPACKED)):
                    freed += _remove(recipe)
                    names.append(_name(recipe, cache))
    for folder in (*_older(cache / "wheels"), *_older(cache / "serving")):
        with unless_locked(folder.with_suffix(".lock")) as free:
            if free:
                freed += _remove(folder)
                names.append(_name(folder, cache))
    return Removed(tuple(names), freed)


def _folders(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _older(folder: Path) -> Iterable[Path]:
    """Return the folders that others were used after; a lock is touched by who holds it."""

    def last_use(path: Path) -> float:
        with suppress(FileNotFoundError):
            return path.with_suffix(".lock").stat().st_mtime
        return 0

    return sorted(_folders(folder), key=last_use, reverse=True)[KEPT:]


def _needed(prefixes: Path) -> Iterator[Path]:
    """Yield the unpacked packages that conda-pack looks into for these prefixes."""
    for record in prefixes.glob("*/conda-meta/*.json"):
        with suppress(OSError, ValueError, KeyError):
            yield Path(json.loads(record.read_text(encoding="utf-8"))["extracted_package_dir"])


def _remove_package(recipe: Path, package: Path) -> int:
    # Its record last told the builds that it is there.
    for record in recipe.glob(f"channel/*/{package.name}.json"):
        record.unlink()
    package.with_name(f"{package.name}.lock").unlink(missing_ok=True)
    return _remove(package)


def _remove(folder: Path) -> int:
    """Remove a folder; return the bytes of files that had no other name."""
    freed = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            facts = Path(parent, file).lstat()
            freed += facts.st_size if facts.st_nlink == 1 else 0
    shutil.rmtree(folder, ignore_errors=True)
    return freed


def _name(path: Path, cache: Path) -> str:
    return path.relative_to(cache).as_posix()
