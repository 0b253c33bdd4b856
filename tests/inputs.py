"""The inputs of a request, from arrays; arrays of a request to NuGraph, and a file of events."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

from deploy.host.paths import CHECKOUT
from numl_formats.contract import HITS, UVY

EVENTS = CHECKOUT / "scripts/data/demo_events.h5"


def zeros(hits: int) -> dict[str, NDArray[Any]]:
    """Return the columns of an event with so many hits, all of them zero, and no spacepoints."""
    return {t.name: np.zeros(hits * t.name.startswith(HITS), t.dtype) for t in UVY.tensors}


def inputs_of(module: Any, tensors: Mapping[str, NDArray[Any]]) -> list[Any]:
    """Return them for ``tritonclient.http`` or ``tritonclient.grpc``, the module."""
    inputs = []
    for name, array in tensors.items():
        inputs.append(module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    return inputs
