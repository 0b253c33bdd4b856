"""In a model instance, import torch sooner: with less of it, and without looking for garbage.

torch's rules for tensors that hold no data are a third of what its import takes, and only compilers
ask for them; the garbage collector's looking through all that is imported is a sixth. Each instance
is a process that imports it anew. A process counts as an instance if the Python backend's own
module is there, which a stub imports before any model. What traces or compiles in such a process
must ``import torch._meta_registrations`` first.
"""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType

_BACKEND = "triton_python_backend_utils"
_RULES = "torch._meta_registrations"

if _BACKEND in sys.modules and "torch" not in sys.modules:
    gc.disable()
    sys.modules[_RULES] = ModuleType(_RULES)
    try:
        importlib.import_module("torch")
    finally:
        del sys.modules[_RULES]


def keep_imported() -> None:
    """Look for garbage from now on, but never again in what is there already."""
    gc.freeze()
    gc.enable()
