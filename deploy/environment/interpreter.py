"""Find a Python for the execution environment, with the libpython that its stub needs."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from deploy.host.errors import EnvironmentSetupError
from deploy.host.programs import distribution

_PROBE = """
import json, sys, sysconfig
variables = sysconfig.get_config_vars("LIBDIR", "INSTSONAME", "MULTIARCH")
# Behind a virtual environment stands the interpreter it was made from.
executable = getattr(sys, "_base_executable", sys.executable)
*numbers, level, serial = sys.version_info
version = ".".join(map(str, numbers)) + ("" if level == "final" else f" {level} {serial}")
print(json.dumps([version, executable, sys.base_prefix, *variables]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter (``X.Y.Z``) whose shared library a stub can load.

    The kit's own, a private one, is fetched when first needed: it ``stands_for`` those of the host
    (``X.Y``) that would do.
    """

    executable: Path
    version: str
    libpython: Path
    stands_for: tuple[str, ...] = ()

    @property
    def private(self) -> bool:
        return bool(self.stands_for)

    @property
    def short_version(self) -> str:
        return self.version.rpartition(".")[0]

    @cached_property
    def identity(self) -> str:
        """Distinguishes this build from others of the same version."""
        if self.private:  # pinned, and not necessarily there yet
            return str(self.executable.parents[1].name)
        total = hashlib.sha256(self.version.encode())
        for path in (self.executable, self.libpython):
            total.update(path.read_bytes())
        return total.hexdigest()


def find_interpreter(pythons: Sequence[str]) -> Interpreter | None:
    """Return the first Python on this host with one of these versions (``X.Y``), or None.

    Tried for each: the Python that runs the kit, ``pythonX.Y`` on PATH, the system's, pyenv's.
    """
    for wanted in pythons:
        for executable in _candidates(wanted):
            found = _probe(executable)
            if not isinstance(found, Interpreter) or not _is_release(found.version):
                continue
            if found.short_version == wanted:
                return found
    return None


def given_interpreter(executable: Path, pythons: Sequence[str]) -> Interpreter:
    """Return the Python at ``executable``; refuse one that is not of ``pythons`` (``X.Y``)."""
    found = _probe(executable)
    if found is None:
        raise EnvironmentSetupError(f"{executable} is not a working Python")
    version = found if isinstance(found, str) else found.version
    if not _is_release(version):
        cause = f"{executable} is Python {version}, a pre-release"
        raise EnvironmentSetupError(cause, f"use a release of Python {_either(pythons)}")
    short = version.rpartition(".")[0]
    if short not in pythons:
        raise EnvironmentSetupError(
            f"{executable} is Python {version}; the environment is locked for {_either(pythons)}"
        )
    if isinstance(found, str):
        install = _installation([short])
        raise EnvironmentSetupError(
            f"{executable} has no shared libpython, which Triton's stub loads",
            f"use a Python built with --enable-shared{f', or {install}' if install else ''}",
        )
    return found


def version_of(executable: Path) -> str | None:
    """Return ``X.Y.Z`` of the Python at ``executable``; None if it does not run as one."""
    found = _probe(executable)
    return found.version if isinstance(found, Interpreter) else found


def no_interpreter(
    pythons: Sequence[str], reason: str | None = None, instead: str | None = None
) -> EnvironmentSetupError:
    """Return an error that says what to install.

    Args:
        pythons: Those that would do (``X.Y``), the best first.
        reason: Why there is no private one.
        instead: What needs none of them.
    """
    cause = f"no Python {_either(pythons)} with its shared library on this host"
    cause = f"{cause}, and {reason}" if reason else cause
    install = (
        _installation(pythons) or f"put python{pythons[0]}, built with --enable-shared, on PATH"
    )
    return EnvironmentSetupError(cause, f"{install}; or {instead}" if instead else install)


def _either(pythons: Sequence[str]) -> str:
    *others, last = sorted(pythons, key=lambda version: int(version.partition(".")[2]))
    return f"{', '.join(others)} or {last}" if others else last


def _candidates(wanted: str) -> Iterator[Path]:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == wanted:
        yield Path(sys.executable)
    on_path = shutil.which(f"python{wanted}")
    if on_path is not None:
        yield Path(on_path)
    for path in (Path(f"/usr/bin/python{wanted}"), Path(f"/usr/local/bin/python{wanted}")):
        if path.exists():
            yield path
    # pyenv's: on PATH it has shims that answer only for the version it has been told to use.
    places = [Path(sys.base_prefix).parent]
    with suppress(RuntimeError):  # a user may have no home
        root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
        places.insert(0, root / "versions")
    for versions in places:
        yield from sorted(versions.glob(f"{wanted}.*/bin/python{wanted}"), reverse=True)


@cache
def _probe(executable: Path) -> Interpreter | str | None:
    """Return an interpreter; its version if it has no libpython; None if it does not run."""
    command = [str(executable), "-I", "-c", _PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        version, base, prefix, libdir, soname, multiarch = json.loads(done.stdout)
    except (OSError, ValueError):  # it is not there, it failed, or it is not a Python
        return None
    # A statically linked interpreter (Debian's) names its archive here; the shared
    # library, if installed, has the usual name all the same.
    usual = f"libpython{version.rpartition('.')[0]}.so.1.0"
    name = soname if soname and ".so" in soname else usual
    folders = [libdir, f"{prefix}/lib", f"/usr/lib/{multiarch}", "/usr/lib64", "/usr/lib"]
    places = (Path(folder) / name for folder in folders if folder)
    libpython = next((place for place in places if place.is_file()), None)
    return version if libpython is None else Interpreter(Path(base), version, libpython)


def _is_release(version: str) -> bool:
    """Return whether it is a release; with what comes before one, packages fail to import."""
    return version.replace(".", "").isdigit()


def _installation(pythons: Sequence[str]) -> str | None:
    """Return what installs the best of ``pythons``, or finds it; None if no package is known."""
    release = distribution()
    like = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    commands, then = [], ""
    if shutil.which("apt-cache"):
        packages = _debian_packages(pythons)
        if not any(Path("/var/lib/apt/lists").glob("*_Packages*")):
            commands.append("sudo apt-get update")
        if packages:
            commands.append(f"sudo apt-get install {' '.join(packages)}")
        elif commands:
            then = ", then this command again"
    elif "fedora" in like:
        commands.append(f"sudo dnf install python{pythons[0]}")
    elif "suse" in like:
        commands.append(f"sudo zypper install python{pythons[0].replace('.', '')}")
    return " && ".join(commands) + then if commands else None


def _debian_packages(pythons: Sequence[str]) -> list[str]:
    # Its own python3, whose library is always to be had; else what its package lists have.
    own = Path("/usr/bin/python3").resolve().name.removeprefix("python")
    if own in pythons:
        return [f"libpython{own}"]
    command = ["apt-cache", "madison", *(f"libpython{version}" for version in pythons)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # 3.11.0~rc1-1~22.04.1 is no release.
    found = re.findall(r"libpython(\S+) \| [\d.]+[-+]", done.stdout)
    best = next((version for version in pythons if version in found), None)
    return [f"python{best}", f"python{best}-venv", f"libpython{best}"] if best else []
