"""A stub next to a model's configuration replaces the server's own.

A server's own stub is built for one Python. A stub for another lies in the model's folder, with the
libraries that it is linked to: the server first starts it without the environment, and if that
fails assumes that it is not executable. On a read-only file system changing its mode then fails,
and so does the model.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from deploy.host.errors import BuildError, RepositoryError
from deploy.host.programs import needed_by, search_path, set_search_path
from deploy.triton.distribution import TritonDistribution

STUB = "triton_python_backend_stub"
_TEXT = re.compile(rb"[\t\n -~]{24,}")
# In texts of pybind11 that depend on the Python.
_OF_PYTHON = (b"CPython", b"sys.path")
_LIBPYTHON = re.compile(r"libpython(\d+\.\d+)\.so(\..*)?")


@dataclass(frozen=True)
class StubFiles:
    """A stub and what to put beside it: the environment's libpython, the stub's CUDA runtime."""

    program: Path
    libraries: tuple[Path, ...]


def stub_of_wheel(distribution: TritonDistribution, libpython: Path | None) -> StubFiles:
    """Return the stub of a Triton wheel; ``libpython`` None: the system has it."""
    runtime = next(distribution.libraries.glob("libcudart-*"))
    libraries = (runtime,) if libpython is None else (runtime, libpython)
    return StubFiles(distribution.stub, libraries)


def python_of_stub(program: Path) -> str:
    try:
        needed = needed_by(program)
    except BuildError:
        needed = []
    for name in needed:
        match = _LIBPYTHON.fullmatch(name)
        if match is not None:
            return match[1]
    raise RepositoryError(
        f"{program}: not a stub of Triton's Python backend (it is linked to no libpython)",
        "build it again for the environment's Python, or remove it: the kit has its own stubs",
    )


def texts_in(program: Path) -> frozenset[bytes]:
    """Return the messages in a stub, which differ between releases but not between Pythons.

    It has no version in it, and talks to the server through shared memory whose layout changes.
    """
    found = _TEXT.findall(program.read_bytes())
    return frozenset(
        text
        for text in found
        if text.count(b" ") >= 3 and not any(word in text for word in _OF_PYTHON)
    )


def write_stub(stub: StubFiles, folder: Path) -> None:
    target = folder / STUB
    for source, copy in [
        (stub.program, target),
        *((library, folder / library.name) for library in stub.libraries),
    ]:
        # It may be a link to someone else's file.
        copy.unlink(missing_ok=True)
        shutil.copyfile(source, copy)
        copy.chmod(0o755)  # whatever the umask: root's server runs as another user
    # Keep the search path that it came with.
    set_search_path(target, ":".join(filter(None, ("$ORIGIN", search_path(target)))))
