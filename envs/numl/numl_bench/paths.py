"""The paths that are compared."""

from __future__ import annotations

import time
from pathlib import Path as Folder

from numl_serving.event import Event
from numl_serving.runtime import Runtime

from .measure import Path, Tensors, Timed
from .reference import Reference

GRADIENTS_ON = "reference, gradients on"
GRADIENTS_OFF = "reference, gradients off"
EAGER = "numl_serving, eager"
COMPILED = "numl_serving, compiled"


def reference_paths(directory: Folder) -> list[Path]:
    """Return the reference as it is mostly served, and with gradients off, its best case."""
    reference = Reference.load(directory)

    def path(name: str, gradients: bool) -> Path:
        def answer(tensors: Tensors) -> Timed:
            start = time.perf_counter()
            graph = reference.preprocess(tensors)
            built = time.perf_counter()
            outputs = reference.network(graph, gradients=gradients)
            return Timed(outputs, built - start, time.perf_counter() - built)

        return Path(name, answer)

    return [path(GRADIENTS_ON, True), path(GRADIENTS_OFF, False)]


def serving_path(name: str, runtime: Runtime) -> Path:
    """Return the way a request takes inside a model instance."""

    def answer(tensors: Tensors) -> Timed:
        start = time.perf_counter()
        event = Event.from_tensors(tensors)
        validated = time.perf_counter() - start
        result = runtime.infer_batch([event])
        return Timed(result.outputs[0], validated + result.preprocess_s, result.network_s)

    return Path(name, answer)
