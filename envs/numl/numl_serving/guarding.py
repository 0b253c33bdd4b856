"""Guards arrays in Triton's stub once the stub itself imports numpy, not before.

``numl_serving.pth`` executes this file when Python starts, and imports nothing: until a stub has
answered, Triton waits for it for seconds only, and an import from a slow disk may take longer.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

UTILS = "triton_python_backend_utils"
"""What the stub imports, and numpy with it, before it makes the first array."""


class _Guarded(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        from numl_serving.native import guard_arrays

        guard_arrays()


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != UTILS:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Guarded(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
