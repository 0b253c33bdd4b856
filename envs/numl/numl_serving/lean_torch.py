"""In a model instance, import torch without its rules for tensors that hold no data.

Only compilers ask for them. They are a third of what importing torch takes, and each instance is a
process that imports it anew. A process counts as an instance if the Python backend's own module is
there, which a stub imports before any model. What traces or compiles in such a process must
``import torch._meta_registrations`` first.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

_BACKEND = "triton_python_backend_utils"
_RULES = "torch._meta_registrations"

if _BACKEND in sys.modules and "torch" not in sys.modules:
    sys.modules[_RULES] = ModuleType(_RULES)
    try:
        importlib.import_module("torch")
    finally:
        del sys.modules[_RULES]
