"""The three steps of the gallery's ocr in one process, without Triton: a baseline.

Runs in the environment ocr: ``python ocr_in_process.py GALLERY SECONDS`` prints seconds a picture.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

STEPS = ("ocr_detect", "ocr_crop", "ocr_read")


def main() -> None:
    """Read the sample again and again."""
    gallery, seconds = Path(sys.argv[1]), float(sys.argv[2])
    sys.modules["triton_python_backend_utils"] = stand_in()
    steps = [load(gallery / step / "1" / "model.py") for step in STEPS]
    picture = np.array([(gallery / "ocr" / "sample.png").read_bytes()], np.object_)
    spent: list[float] = []
    while sum(spent) < seconds or len(spent) < 3:
        start = time.perf_counter()
        tensors = {"picture": picture}
        for step in steps:
            (answer,) = step.execute([tensors])
            tensors |= answer
        spent.append(time.perf_counter() - start)
    lines = [text.decode() for text in tensors["texts"]]
    print(json.dumps({"seconds": spent[1:], "lines": lines}))


def stand_in() -> ModuleType:
    """Return a module that passes arrays on, where Triton's passes tensors."""
    module: Any = ModuleType("triton_python_backend_utils")
    module.get_input_tensor_by_name = lambda request, name: SimpleNamespace(
        as_numpy=lambda: request[name]
    )
    module.Tensor = lambda name, array: (name, array)
    module.InferenceResponse = dict
    return module  # type: ignore[no-any-return]


def load(path: Path) -> Any:
    """Return the model in a file, ready."""
    sys.path.insert(0, str(path.parent))  # as Triton does
    spec = importlib.util.spec_from_file_location(path.parts[-3], path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    model.initialize({})
    return model


if __name__ == "__main__":
    main()
