"""Import torch without its rules for tensors that hold no data, which only compilers ask for.

They are a third of what importing torch takes, and each model instance imports it anew. To be
imported before torch, by what only answers events. Whatever compiles or traces in the same process
must ``import torch._meta_registrations`` first.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

_RULES = "torch._meta_registrations"

if "torch" not in sys.modules:
    sys.modules[_RULES] = ModuleType(_RULES)
    try:
        importlib.import_module("torch")
    finally:
        del sys.modules[_RULES]
