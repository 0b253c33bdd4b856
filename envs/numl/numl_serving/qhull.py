"""QHull's Delaunay triangulation as scipy wraps it, without the rest of ``scipy.spatial``.

Each model instance is a process that imports all it needs: trees, distances and rotations would
take as long as all of numpy.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

_PACKAGE = "scipy.spatial"


def _import_qhull() -> None:
    """Import ``scipy.spatial._qhull`` alone, where nobody has imported the package yet."""
    spec = importlib.util.find_spec(_PACKAGE)
    if _PACKAGE in sys.modules or spec is None:
        return
    # A package that knows where its modules are, and has not run its own code.
    sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    try:
        importlib.import_module(f"{_PACKAGE}._qhull")
    finally:
        del sys.modules[_PACKAGE]  # who wants the package is to get all of it


try:
    _import_qhull()
    _module = sys.modules[f"{_PACKAGE}._qhull"]
except (ImportError, KeyError):  # a private module: another scipy may have another one
    _module = importlib.import_module(_PACKAGE)

Delaunay = _module.Delaunay
QhullError = _module.QhullError
