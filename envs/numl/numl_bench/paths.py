"""The code paths that the benchmark compares."""

from __future__ import annotations

import time
from pathlib import Path as Folder

from numl_serving.errors import ServingError
from numl_serving.event import Event
from numl_serving.runtime import Runtime

from .measure import Path, Tensors, Timed
from .reference import load

GRADIENTS_ON = "reference, gradients on"
GRADIENTS_OFF = "reference, gradients off"
SERVING = "numl_serving"


def reference_paths(directory: Folder, nugraph25: Folder) -> list[Path]:
    """Return the reference as usually served, and its best case, with gradients off."""
    reference = load(directory, nugraph25)

    def path(name: str, gradients: bool) -> Path:
        def answer(tensors: Tensors) -> Timed:
            start = time.perf_counter()
            graph = reference.preprocess(tensors)
            built = time.perf_counter()
            outputs = reference.network(graph, gradients=gradients)
            return Timed(outputs, built - start, time.perf_counter() - built)

        return Path(name, answer)

    return [path(GRADIENTS_ON, True), path(GRADIENTS_OFF, False)]


def serving_path(directory: Folder) -> Path:
    """Return the way a request takes inside a model instance on a CPU.

    The native library goes from an event to its answer in one call, and says what the graph took.

    Raises:
        ServingError: The model cannot be loaded.
    """
    runtime = Runtime.load(directory)

    def answer(tensors: Tensors) -> Timed:
        start = time.perf_counter()
        event = Event.from_tensors(tensors, runtime.card.schema)
        batch = runtime.infer_batch([event])
        (outputs,) = batch.outputs
        if isinstance(outputs, ServingError):
            raise outputs
        whole = time.perf_counter() - start
        return Timed(outputs, whole - batch.network_s, batch.network_s)

    return Path(SERVING, answer)
