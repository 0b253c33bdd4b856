"""Execution environments, NuGraph's and others: planned first, made when needed.

A lock becomes one folder: an interpreter, the locked packages and, in a second step,
``numl_serving``. For engine ``local`` it is a virtual environment. A relocatable one carries its
interpreter, leaves out what serving never loads, and is packed or put into an image.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from deploy.environment.cpython import lay_out
from deploy.environment.elf import drop_symbols, glibc_needed, is_elf
from deploy.environment.interpreter import (
    Interpreter,
    find_interpreter,
    given_interpreter,
    no_interpreter,
)
from deploy.environment.lock import Flavour, Lock, install_lock, locked_pythons, read_lock
from deploy.environment.private_python import ensure_private_python, private_python
from deploy.environment.serving import serving_digest, serving_wheel
from deploy.environment.slimming import compile_modules, is_compiled, is_needed
from deploy.environment.sources import is_of_kit
from deploy.host.console import Say
from deploy.host.errors import EnvironmentSetupError
from deploy.host.files import built_folder, digest_of, link_or_copy, locked
from deploy.host.paths import ENVIRONMENT_SOURCE, cache_folder
from deploy.host.programs import run

MARKER = "numlkit-environment.json"
"""Written last into an environment; it holds the digest."""

# The modules that decide what an environment contains: a change in them changes its digest.
_RECIPE = ("cpython", "elf", "environment", "slimming")
_LOCKS = ENVIRONMENT_SOURCE / "locks"

# Triton's wheel brings its own libpython 3.13, which its stub loads under this name. It does
# not fit other builds' standard libraries; a link in the environment's lib is found first.
_BUNDLED_LIBPYTHON = {"3.13": "libpython3-419a3a08.13.so.1.0"}

_ACTIVATE = """\
# Sourced by Triton before it starts a stub.
VIRTUAL_ENV=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$VIRTUAL_ENV/bin:$PATH
export VIRTUAL_ENV PATH
unset PYTHONHOME
"""

# The shell reads the second line as: exec the Python beside this file. Python reads a string
# from the second line to the third. So a script needs no absolute path.
_LAUNCHER = b"""\
#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''
"""
_SHEBANG = re.compile(rb"#!/bin/sh\n'''exec' .*\n' '''\n|#!.*python.*\n")

# A script in a wheel's RECORD, whose digest is of a path: that of the folder it was installed in.
_OF_SCRIPT = re.compile(rb"^((?:\.\./)+bin/.*),sha256=[^,\r\n]*,\d+", re.MULTILINE)

_SITECUSTOMIZE = '''\
"""Restrict Python to the packages of this environment."""

import os
import site
import sys

# A container sees the user's home folder, which may hold other versions of the packages.
if site.ENABLE_USER_SITE and site.getusersitepackages() in sys.path:
    sys.path.remove(site.getusersitepackages())
# Debian's Python looks elsewhere.
_folder = os.path.join(os.path.dirname(__file__), "site-packages")
if _folder not in sys.path:
    site.addsitedir(_folder)
'''


@dataclass(frozen=True)
class Environment:
    """An execution environment on this host, whether made yet or not.

    A ``relocatable`` one carries its interpreter and can be moved; the packages in it are slim, or
    ``whole`` in a site's. ``packages`` is the same as ``folder`` without ``numl_serving``, so that
    a change there does not reinstall everything else; the two share their files by hard links,
    where there are any. ``wheels`` is the only folder that pip may take wheels from; None: it uses
    its index.
    """

    name: str
    flavour: Flavour
    lock: Lock
    interpreter: Interpreter
    relocatable: bool
    digest: str
    folder: Path
    packages: Path
    wheels: Path | None = None
    whole: bool = False

    @property
    def is_made(self) -> bool:
        return (self.folder / MARKER).exists()

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return self.folder / _site(self.interpreter)

    @property
    def libpython(self) -> Path:
        return self.folder / "lib" / f"libpython{self.interpreter.short_version}.so.1.0"

    @property
    def glibc(self) -> tuple[int, int]:
        """The oldest glibc that it runs on, read from all its libraries."""
        return glibc_needed(_files(self.folder))

    def make(self, say: Say) -> Environment:
        lock = self.folder.with_name(f"{self.folder.name}.lock")
        if self.is_made:
            with suppress(OSError):  # in another user's cache
                os.utime(lock)  # it is used
            return self
        waiting = "another command is making the environment; waiting"
        with locked(lock, waiting=lambda: say(waiting)):
            if not self.is_made:
                self._make(say)
        return self

    def _make(self, say: Say) -> None:
        ensure_private_python(self.interpreter, say)
        with locked(self.packages.with_name(f"{self.packages.name}.lock")):
            if not self.packages.exists():
                with built_folder(self.packages) as partial:
                    _install_packages(self, partial, say)
            wheel = serving_wheel(cache_folder(), ENVIRONMENT_SOURCE, say)
            say("installing numl_serving")
            with built_folder(self.folder) as partial:
                shutil.copytree(
                    self.packages,
                    partial,
                    symlinks=True,
                    copy_function=link_or_copy,
                    dirs_exist_ok=True,
                )
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(partial / _site(self.interpreter))
                if self.relocatable:
                    serving = [p for p in _files(partial) if is_of_serving(_below(p, partial))]
                    _slim_and_compile(partial, serving, self)
                facts = {"digest": self.digest, "python": self.interpreter.version}
                (partial / MARKER).write_text(json.dumps(facts) + "\n", encoding="utf-8")


def plan_environment(
    flavour: Flavour,
    *,
    source: Path | None = None,
    relocatable: bool = False,
    python: Path | None = None,
    wheels: Path | None = None,
    stub: str | None = None,
) -> Environment:
    """Decide what an environment is made of, without making or downloading anything.

    ``source`` is the folder of its specification and locks; None: NuGraph's.

    Without ``python``, the interpreter is the first suitable one on this host, else the kit's
    private one. A relocatable environment prefers the private one, which runs on older systems.
    With ``stub`` (``X.Y``), it has that Python: the only one that the server has a stub for.
    """
    if wheels is not None and not wheels.is_dir():
        raise EnvironmentSetupError(f"{wheels}: no such folder", "name a folder with wheels")
    locks = _LOCKS if source is None else source / "locks"
    pythons = _fitting(locks, flavour, stub, relocatable=relocatable)
    interpreter = _choose_interpreter(pythons, python, prefer_private=relocatable and not wheels)
    lock = read_lock(locks, flavour, interpreter.short_version)
    if wheels is not None and interpreter.private and not interpreter.executable.exists():
        raise no_interpreter(pythons)
    whole = source is not None and not is_of_kit(source)
    identity = [_recipe(), lock.digest, interpreter.identity]
    identity += ["relocatable"] if relocatable else [str(interpreter.executable)]
    identity += ["whole"] if whole else []
    packages = hashlib.sha256("\0".join(identity).encode()).hexdigest()
    both = f"{packages}{serving_digest(ENVIRONMENT_SOURCE)}"
    digest = hashlib.sha256(both.encode()).hexdigest()
    # What only builds use is cleared by them; servers run in the others.
    only_built = relocatable and source is None
    folder = cache_folder() / ("relocatable" if only_built else "environments")
    kind = flavour if source is None else f"{source.name}-{flavour}"
    return Environment(
        name=ENVIRONMENT_SOURCE.name if source is None else source.name,
        flavour=flavour,
        lock=lock,
        interpreter=interpreter,
        relocatable=relocatable,
        digest=digest,
        folder=folder / f"{kind}-{digest[:16]}",
        packages=folder / f"{kind}-packages-{packages[:16]}",
        wheels=wheels,
        whole=whole,
    )


def is_of_serving(path: str) -> bool:
    """Return whether the file at ``path`` (below a prefix) changes with our own Python."""
    serving = re.match(r"lib/python[\d.]+/site-packages/(numl_serving|numl_formats)\b", path)
    return path == MARKER or serving is not None


def _fitting(
    locks: Path, flavour: Flavour, stub: str | None, *, relocatable: bool
) -> tuple[str, ...]:
    """Return the Pythons that a flavour is locked for and the server has a stub for."""
    pythons = locked_pythons(locks, flavour)
    command = f"numlkit lock {locks.parent}{' --flavour gpu' if flavour == 'gpu' else ''}"
    if not pythons:
        remedy = "git checkout its locks" if locks == _LOCKS else command
        raise EnvironmentSetupError(f"{locks.parent} has no lock of flavour {flavour}", remedy)
    if stub is not None:
        fitting = tuple(version for version in pythons if version == stub)
    else:  # the stubs of later ones are linked to the wheel's own libpython
        left = _BUNDLED_LIBPYTHON if relocatable else ()
        fitting = tuple(version for version in pythons if version not in left)
    if not fitting:
        cause = f"flavour {flavour} is locked for Python {', '.join(pythons)}; this Triton's stub "
        cause += f"is built for {stub}" if stub is not None else "for that cannot be packed"
        remedy = "use a Triton whose stub is for one of them"
        remedy += "" if locks == _LOCKS else f", or {command} --triton with this one"
        raise EnvironmentSetupError(cause, remedy)
    return fitting


def _choose_interpreter(
    pythons: tuple[str, ...], given: Path | None, *, prefer_private: bool
) -> Interpreter:
    if given is not None:
        return given_interpreter(given, pythons)
    private = private_python(pythons)
    if prefer_private and private is not None and private.executable.exists():
        return private
    found = find_interpreter(pythons) or private
    if found is None:
        raise no_interpreter(pythons)
    return found


@lru_cache
def _recipe() -> str:
    here = Path(__file__).parent
    return digest_of([here / f"{name}.py" for name in _RECIPE], base=here)


def _install_packages(environment: Environment, folder: Path, say: Say) -> None:
    interpreter = environment.interpreter
    say(f"making an environment with Python {interpreter.version}")
    # Without pip: a bare Debian's Python cannot put one there, and the kit has its own.
    # -I: no module of the folder where the command is typed is taken for one of Python's.
    command = [str(interpreter.executable), "-I", "-m", "venv", "--without-pip", str(folder)]
    run(command, failed="python -m venv failed", error=EnvironmentSetupError)
    for path in (folder / "bin").glob("[Aa]ctivate*"):
        path.unlink()
    install_lock(folder, environment.lock, say=say, wheels=environment.wheels)
    for path in (folder / "bin").iterdir():
        _launch_relatively(path)
    # For use in place; conda-pack replaces it in what it packs.
    (folder / "bin" / "activate").write_text(_ACTIVATE, encoding="utf-8")
    if environment.relocatable:
        (folder / "pyvenv.cfg").unlink()
        (folder / "lib64").unlink(missing_ok=True)
        for path in (folder / "bin").glob("python*"):
            path.unlink()  # a link to the interpreter
        lay_out(interpreter, folder)
        stdlib = folder / "lib" / f"python{interpreter.short_version}"
        (stdlib / "sitecustomize.py").write_text(_SITECUSTOMIZE, encoding="utf-8")
        for record in folder.glob(f"{_site(interpreter)}/*.dist-info/RECORD"):
            record.write_bytes(_OF_SCRIPT.sub(rb"\1,,", record.read_bytes()))
        _slim_and_compile(folder, list(_files(folder)), environment)
        (folder / "conda-meta").mkdir()
        (folder / "conda-meta" / "history").touch()  # conda-pack asks for it
    else:
        short = interpreter.short_version
        for name in (f"libpython{short}.so.1.0", _BUNDLED_LIBPYTHON.get(short)):
            if name is not None:
                (folder / "lib" / name).symlink_to(interpreter.libpython)


def _launch_relatively(script: Path) -> None:
    """Replace the absolute path of a script's interpreter."""
    if script.is_symlink() or not script.is_file():
        return
    content = script.read_bytes()
    if match := _SHEBANG.match(content):
        script.write_bytes(_LAUNCHER + content[match.end() :])


def _slim_and_compile(folder: Path, files: Iterable[Path], environment: Environment) -> None:
    kept, every = [], environment.name != ENVIRONMENT_SOURCE.name
    for path in files:
        # sitecustomize.py of the interpreter was left out; this one is ours.
        needed = is_needed(_below(path, folder), whole=environment.whole)
        if needed or path.name == "sitecustomize.py":
            kept.append(path)
            if ".so" in path.name and not path.is_symlink() and is_elf(path):
                drop_symbols(path)
        else:
            path.unlink()
            parent = path.parent
            while not any(parent.iterdir()):
                parent.rmdir()
                parent = parent.parent
    # What other models than NuGraph's import is not known.
    imported = [path for path in kept if every or is_compiled(_below(path, folder))]
    compile_modules(folder, imported, environment.interpreter.executable)


def _site(interpreter: Interpreter) -> str:
    return f"lib/python{interpreter.short_version}/site-packages"


def _files(folder: Path) -> Iterable[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())


def _below(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
