"""The stub beside a model's configuration: it takes the place of the server's own.

A server's own stub is built for one Python. Another one is put into the model's folder, and
finds there what it is linked to: the server starts it once without the environment that it
has later, and takes one that does not start for one that lacks the permission to. Giving that
permission changes the file, or fails where it cannot be written, and then the model fails.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from deploy.errors import BuildError, RepositoryError
from deploy.packing.search_path import needed_by, search_path, set_search_path
from deploy.server.distribution import TritonDistribution

STUB = "triton_python_backend_stub"
_LIBPYTHON = re.compile(r"libpython(\d+\.\d+)\.so(\..*)?")


@dataclass(frozen=True)
class StubFiles:
    """A stub and what it is to find beside itself.

    Attributes:
        program: The stub.
        libraries: The libraries: the environment's libpython, and the CUDA runtime if it
            comes with the stub.
    """

    program: Path
    libraries: tuple[Path, ...]


def stub_of_wheel(distribution: TritonDistribution, libpython: Path | None) -> StubFiles:
    """Return the stub that comes in the wheel of a Triton.

    Args:
        distribution: The Triton, unpacked with the stub for the Python that is wanted.
        libpython: The environment's shared library of that Python; None: the system has it.
    """
    runtime = next(distribution.libraries.glob("libcudart-*"))
    libraries = (runtime,) if libpython is None else (runtime, libpython)
    return StubFiles(distribution.backends / "python" / STUB, libraries)


def python_of_stub(program: Path) -> str:
    """Return the Python (``X.Y``) that a stub is built for.

    Raises:
        RepositoryError: If it is not a stub.
    """
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
        "build it again for the environment's Python, or remove it: the kit has stubs of its own",
    )


def write_stub(stub: StubFiles, folder: Path) -> None:
    """Write a stub and its libraries into the folder of a model.

    Raises:
        BuildError: If the stub cannot be changed.
    """
    target = folder / STUB
    for source, copy in [
        (stub.program, target),
        *((library, folder / library.name) for library in stub.libraries),
    ]:
        # What is there may be a link to a file of somebody else's.
        copy.unlink(missing_ok=True)
        shutil.copyfile(source, copy)
    target.chmod(0o755)
    # What it came with has been found before, and is not to be lost.
    set_search_path(target, ":".join(filter(None, ("$ORIGIN", search_path(target)))))
