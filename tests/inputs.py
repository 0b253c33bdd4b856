"""The inputs of a request, from arrays."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype


def inputs_of(module: Any, tensors: Mapping[str, NDArray[Any]]) -> list[Any]:
    """Return them for ``tritonclient.http`` or ``tritonclient.grpc``, the module."""
    inputs = []
    for name, array in tensors.items():
        inputs.append(module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    return inputs
