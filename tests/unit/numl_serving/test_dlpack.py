"""Arrays go to Triton and come from it by DLPack, whatever version numpy has."""

import ctypes
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import fake_triton
import numpy as np
import pytest
from numl_serving import dlpack

SHAPES = [(0,), (1,), (7,), (0, 5), (3, 5), (1, 4), (4, 0), (2, 0, 3), (2, 3, 4)]


# numpy exports what is writable and not empty, the others are exported here.
WRITABLE = pytest.mark.parametrize("writable", [True, False], ids=["writable", "read-only"])


@WRITABLE
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64, np.uint8, np.float64, np.int8])
def test_arrays_come_back_as_they_were_given(dtype, shape, writable):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    array.flags.writeable = writable
    back = dlpack.to_array(dlpack.to_tensor(fake_triton, "x", array))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_strides_are_those_of_numbers_that_follow_each_other(shape):
    # Triton refuses others where it looks at them, and reads wrong numbers where it does not.
    wide = np.zeros((*shape[:-1], 2 * shape[-1]), np.float32)[..., ::2]
    _, address = dlpack._capsule(wide)
    buffer, kept = dlpack._held.pop(address)
    places = ctypes.cast(address + 32, ctypes.POINTER(ctypes.c_int64))[0]
    strides = ctypes.cast(places, ctypes.POINTER(ctypes.c_int64))[: len(shape)]
    assert strides == [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    assert kept.shape == shape
    assert len(buffer) == 128


@WRITABLE
def test_an_array_is_kept_until_triton_lets_go_of_it(writable):
    before = len(dlpack._held)
    array = np.ones((3, 2), np.float32)
    array.flags.writeable = writable
    kept = weakref.ref(array)
    tensor = dlpack.to_tensor(fake_triton, "x", array)
    del array
    gc.collect()
    assert kept() is not None
    np.testing.assert_array_equal(tensor._array, np.ones((3, 2)))
    del tensor
    gc.collect()
    assert kept() is None
    assert len(dlpack._held) == before


@WRITABLE
def test_an_array_that_triton_refuses_is_not_kept(writable):
    def refuse(_name: str, _capsule: Any) -> Any:
        raise RuntimeError("no")

    pb = SimpleNamespace(Tensor=SimpleNamespace(from_dlpack=refuse))
    before = len(dlpack._held)
    array = np.zeros(3, np.float32)
    array.flags.writeable = writable
    kept = weakref.ref(array)
    with pytest.raises(RuntimeError, match="no"):
        dlpack.to_tensor(pb, "x", array)
    assert len(dlpack._held) == before
    del array
    gc.collect()
    assert kept() is None
