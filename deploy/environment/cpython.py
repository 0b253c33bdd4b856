"""A CPython of this host, copied into a relocatable prefix.

Everything it needs except glibc is in the prefix too, found relative to each file.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from deploy.environment.elf import drop_symbols, is_elf
from deploy.environment.interpreter import Interpreter
from deploy.environment.slimming import is_needed
from deploy.host.errors import EnvironmentSetupError
from deploy.host.programs import run, set_search_path

IMAGE_PREFIX = "/opt/numl/env"
"""Where the environment is in an image."""

_PROBE = """
import json, sys, sysconfig
print(json.dumps([sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"),
                  sys.base_prefix, sys.platlibdir]))
"""

# Parts of glibc and of the compiler's run-time, which Triton's server needs too: a copy could be
# older than what the stub of a newer release asks for.
_SYSTEM_LIBRARIES = re.compile(
    r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|nsl|anl|stdc\+\+|gcc_s))\.so.*"
)
_LDD = re.compile(r"\s*(\S+) => (\S+) \(0x")


def lay_out(interpreter: Interpreter, prefix: Path) -> None:
    """Copy ``interpreter`` with its standard library and shared libraries into ``prefix``."""
    command = [str(interpreter.executable), "-I", "-c", _PROBE]
    failed = f"{interpreter.executable} is not a working Python"
    answer = run(command, failed=failed, error=EnvironmentSetupError)
    stdlib, platstdlib, base, platlibdir = json.loads(answer)
    short = interpreter.short_version
    library = prefix / "lib"
    copied = [*_copy_stdlib(Path(stdlib), library / f"python{short}", prefix)]
    modules, dynload = Path(platstdlib) / "lib-dynload", library / f"python{short}" / "lib-dynload"
    if Path(platstdlib) != Path(stdlib):
        copied += _copy_stdlib(modules, dynload, prefix)
    if platlibdir != "lib":
        (prefix / platlibdir).symlink_to("lib")
    program = prefix / "bin" / f"python{short}"
    program.parent.mkdir(exist_ok=True)
    shutil.copyfile(interpreter.executable, program)
    program.chmod(0o755)
    for name in ("python", "python3"):
        (program.parent / name).symlink_to(program.name)
    libpython = library / f"libpython{short}.so.1.0"
    shutil.copyfile(interpreter.libpython, libpython)
    (library / f"libpython{short}.so").symlink_to(libpython.name)
    copied += [program, libpython]
    # Asked where they come from: a copy may name its libraries relative to itself, as conda's do.
    loaded = [modules / path.name for path in sorted(dynload.iterdir())]
    own = (interpreter.executable.resolve(), interpreter.libpython.resolve())
    for name, found in _shared_libraries([*own, *loaded]):
        if name != libpython.name:
            shutil.copyfile(found, library / name)
            copied.append(library / name)
    for path in copied:
        if is_elf(path):
            path.chmod(0o755)
            # patchelf rearranges a file, after which its symbols can no longer be cut off.
            drop_symbols(path)
            way = Path(*[".."] * len(path.parent.relative_to(prefix).parts), "lib")
            set_search_path(path, f"$ORIGIN/{way}" if path.parent != library else "$ORIGIN")
        elif base != "/usr":  # too common a word to be taken for the prefix
            path.write_bytes(path.read_bytes().replace(base.encode(), IMAGE_PREFIX.encode()))


def _copy_stdlib(source: Path, target: Path, prefix: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(source):
        if Path(parent) == source:
            folders[:] = [name for name in folders if not name.endswith("-packages")]
        for file in files:
            copy = target / Path(parent, file).relative_to(source)
            if is_needed(copy.relative_to(prefix).as_posix()):
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(parent, file), copy)
                yield copy


def _shared_libraries(files: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield name and path of the libraries that ``files`` load, except those Triton needs too."""
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
