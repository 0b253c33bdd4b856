"""Triton's stub gets an array for every shape, also for one that numpy refuses."""

import ctypes
import importlib
import subprocess
import sys
from ctypes import c_int, c_ssize_t, c_void_p, py_object
from pathlib import Path
from typing import Any

import numl_serving
import numpy as np
import pytest
from numl_serving.native import guard_arrays

NEW_FROM_DESCR = 94
WRITEABLE = 0x0400
HUGE = 2**62


class Numpy:
    """The table of numpy's C interface, by which pybind11 in the stub makes its arrays."""

    def __init__(self) -> None:
        capsule = importlib.import_module("numpy._core.multiarray")._ARRAY_API
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = c_void_p, (py_object, c_void_p)
        self.table = ctypes.cast(pointer(capsule, None), ctypes.POINTER(c_void_p))
        self.data = (ctypes.c_int32 * 8)(*range(8))

    def array(self, *shape: int) -> Any:
        """Return an int32 array of the shape; without a copy, as the stub does."""
        new = ctypes.PYFUNCTYPE(
            py_object, py_object, py_object, c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p
        )(self.table[NEW_FROM_DESCR])
        dtype = np.dtype(np.int32)
        ctypes.pythonapi.Py_IncRef(py_object(dtype))  # it takes one
        sizes = (c_ssize_t * len(shape))(*shape)
        return new(np.ndarray, dtype, len(shape), sizes, None, self.data, WRITEABLE, None)


@pytest.fixture
def unguarded():
    numpy = Numpy()
    own = numpy.table[NEW_FROM_DESCR]
    yield numpy
    numpy.table[NEW_FROM_DESCR] = own


@pytest.fixture
def guarded(unguarded):
    guard_arrays()
    guard_arrays()
    return unguarded


@pytest.mark.parametrize("shape", [(), (0,), (1,), (8,), (2, 4), (2, 0), (0, 3), (1,) * 32])
def test_a_possible_shape_is_numpys_own(guarded, shape):
    array = guarded.array(*shape)
    assert array.shape == shape
    assert array.ravel().tolist() == list(range(array.size))


@pytest.mark.parametrize(
    "shape",
    [
        *((HUGE,), (HUGE + 5,), (2 * HUGE - 1,), (2**32, 2**32), (2**31, 2**31, 4)),
        *((-1,), (-HUGE,), (5 - HUGE,), (-2 * HUGE,), (-2, -2), (-HUGE, -HUGE)),
        *((0, HUGE), (HUGE, 0), (0, -1), (2**40, 0, 2**40)),
    ],
)
def test_an_impossible_shape_has_no_elements(guarded, shape):
    with pytest.raises(ValueError, match=r"too big|negative|[Mm]aximum"):
        np.empty(shape, np.int32)
    array = guarded.array(*shape)
    assert array.size == 0
    assert array.ndim == len(shape)


def test_a_numpy_before_1_26_1_is_guarded_by_the_name_that_its_core_had(unguarded, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy._core.multiarray", None)
    guard_arrays()
    assert unguarded.array(HUGE).size == 0


def test_nothing_is_imported_before_the_stub_imports_numpy_itself(tmp_path):
    (tmp_path / "triton_python_backend_utils.py").write_text("import numpy\nHERE = True\n")
    guarding = Path(numl_serving.__file__).with_name("guarding.py")
    code = (
        "import sys\n"
        f"exec(open({str(guarding)!r}).read(), {{}})\n"
        "print(*(n in sys.modules for n in ('numpy', 'numl_serving')))\n"
        "import triton_python_backend_utils\n"
        "print(triton_python_backend_utils.HERE, 'numl_serving.native' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("False False\nTrue True\n", "")
