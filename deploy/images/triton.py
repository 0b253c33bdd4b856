"""Triton as a layer of the image: a whole one for a bare base, a stub for NVIDIA's."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from deploy.console import Say
from deploy.errors import BuildError
from deploy.images.base import Base
from deploy.images.tars import write_tar
from deploy.packing.layers import IMAGE_PREFIX
from deploy.packing.search_path import needed_by, search_path, set_search_path
from deploy.server.distribution import TritonDistribution

ROOT = "opt/tritonserver"
_STUB = Path("backends/python/triton_python_backend_stub")
_PARTS: dict[Base, tuple[Path, ...]] = {
    "slim": (
        Path("bin/tritonserver"),
        Path("backends/python/libtriton_python.so"),
        Path("backends/python/triton_python_backend_utils.py"),
        Path("caches/local/libtritoncache_local.so"),
        _STUB,
    ),
    # NVIDIA's image has all but a stub for the environment's Python.
    "ngc": (_STUB,),
}


def triton_layer(distribution: TritonDistribution, out: Path, *, base: Base, say: Say) -> None:
    """Write the layer: a tar whose root is ``opt/tritonserver``, in NVIDIA's layout.

    Every file finds the libraries it needs relative to itself, so that neither server nor
    stub needs ``LD_LIBRARY_PATH``. Libraries that none of them needs are left out.

    Args:
        distribution: The unpacked Triton.
        out: The tar to write.
        base: The base that the layer goes onto.
        say: Is told what happens.

    Raises:
        BuildError: If a file of Triton is not as expected.
    """
    say(f"laying out Triton for base {base}")
    parts = _PARTS[base]
    for part in parts:
        if not (distribution.root / part).is_file():
            raise BuildError(
                f"{distribution.root / part} is missing",
                f"rm -r {distribution.root}, then repeat the command: it is unpacked anew",
            )
    there = {path.name: path for path in distribution.libraries.iterdir()}
    binaries = [part for part in parts if part.suffix != ".py"]
    needed = closure((distribution.root / part for part in binaries), there, needed_by)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        tree = Path(scratch)
        for part in parts:
            (tree / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(distribution.root / part, tree / part)
        (tree / "lib").mkdir()
        for name in sorted(needed):
            shutil.copy(there[name], tree / "lib" / name)
            # patchelf may add 2 MB to a file: those that look for nothing stay as they are.
            if search_path(there[name]) or needed & set(needed_by(there[name])):
                set_search_path(tree / "lib" / name, "$ORIGIN")
        for part in binaries:
            search = "$ORIGIN/" + "../" * len(part.parent.parts) + "lib"
            # To see whether the stub can be started, the server starts it once without
            # the library path that it has later.
            libpython = f":{IMAGE_PREFIX}/lib" if part == _STUB else ""
            set_search_path(tree / part, search + libpython)
        write_tar(tree, out, root=ROOT)


def closure(
    binaries: Iterable[Path], there: dict[str, Path], needs: Callable[[Path], list[str]]
) -> set[str]:
    """Return which of the libraries in ``there`` the binaries need, directly or not.

    Args:
        binaries: Where to begin.
        there: Libraries by name; the others are the system's.
        needs: Returns the names of the libraries that a file is linked to.
    """
    found: set[str] = set()
    waiting = list(binaries)
    while waiting:
        new = {name for name in needs(waiting.pop()) if name in there} - found
        found |= new
        waiting += [there[name] for name in new]
    return found
