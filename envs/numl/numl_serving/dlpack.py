"""Arrays to and from Triton's tensors by DLPack, in which no version of numpy is asked for.

Triton's Python backend of 24.10 takes numpy's arrays for those of numpy 1: with numpy 2
``as_numpy`` repeats the first element and ``Tensor(name, array)`` is empty, both silently. By
DLPack both are right, and with numpy 1.26, too. What numpy would export with strides that Triton
refuses (empty arrays of several dimensions), or not at all (read-only ones), is exported here.

Source of the layout: ``dlpack.h`` of DLPack 0.8, which has no versions yet.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numl_serving.errors import EventError

_NAME = b"dltensor"
_CPU = (1, 0)  # kDLCPU, the first of them
_CODES = {"i": 0, "u": 1, "f": 2}
_MOST_DIMENSIONS = 4
# DLManagedTensor: data, device, ndim, dtype (code, bits, lanes), shape, strides, byte_offset,
# manager_ctx, deleter; behind it shape and strides.
_MANAGED = struct.Struct(f"@P2i iBBH PPQ PP {2 * _MOST_DIMENSIONS}q")
_SHAPE_AT = _MANAGED.size - 2 * _MOST_DIMENSIONS * 8

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes = (ctypes.py_object, ctypes.c_char_p)
_set_destructor = ctypes.pythonapi.PyCapsule_SetDestructor
_set_destructor.argtypes = (ctypes.py_object, ctypes.c_void_p)

# What Triton holds, by the address of its description.
_held: dict[int, tuple[Any, NDArray[Any]]] = {}


def _let_go(managed: int) -> None:
    _held.pop(managed, None)


# Called by Triton, from C.
_let_go_from_c = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_let_go)
_DELETER = ctypes.cast(_let_go_from_c, ctypes.c_void_p).value


def to_array(tensor: Any) -> NDArray[Any]:
    """Return a tensor of Triton in the host's memory as an array; nothing is copied.

    Raises:
        EventError: Its shape is one that `numl_serving.native.guard_arrays` describes.
    """
    try:
        return np.from_dlpack(_Exporter(tensor))
    except ValueError:
        raise EventError(f"tensor {tensor.name()} has an impossible shape") from None


def to_tensor(pb: Any, name: str, array: NDArray[Any]) -> Any:
    """Return an array as a tensor of Triton, which keeps it until it has been sent.

    Args:
        pb: The module ``triton_python_backend_utils``.
        name: The tensor's name.
        array: Numbers, of up to four dimensions; copied if it is not contiguous.
    """
    if array.size and array.flags.carray:
        exported = array.__dlpack__()
        tensor = pb.Tensor.from_dlpack(name, exported)
        # Triton marks a capsule as taken in other words than numpy's destructor looks for.
        _set_destructor(exported, None)
        return tensor
    capsule, address = _capsule(array)
    try:
        return pb.Tensor.from_dlpack(name, capsule)
    except BaseException:
        if _is_capsule(capsule, _NAME):  # nobody has taken it
            _held.pop(address, None)
        raise


class _Exporter:
    """A tensor of Triton as numpy asks for one; numpy 2 gives arguments that Triton refuses."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_given: Any) -> Any:
        return self._tensor.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU


def _capsule(array: NDArray[Any]) -> tuple[Any, int]:
    """Return an array in a capsule, and the address of its description."""
    array = np.ascontiguousarray(array)
    shape, dtype = array.shape, array.dtype
    # As numbers follow each other, also where there are none.
    strides, step = [0] * _MOST_DIMENSIONS, 1
    for axis in range(array.ndim - 1, -1, -1):
        strides[axis] = step
        step *= shape[axis]
    sizes = (*shape, *(0,) * (_MOST_DIMENSIONS - array.ndim))
    buffer = ctypes.create_string_buffer(_MANAGED.size)
    address = ctypes.addressof(buffer)
    at = address + _SHAPE_AT
    _MANAGED.pack_into(
        buffer, 0, array.ctypes.data, *_CPU, array.ndim, _CODES[dtype.kind], 8 * dtype.itemsize, 1,
        at, at + 8 * _MOST_DIMENSIONS, 0, 0, _DELETER, *sizes, *strides,
    )  # fmt: skip
    _held[address] = (buffer, array)
    return _new_capsule(address, _NAME, None), address
