"""The C++ of the softmax aggregation gives what its definition says, for all sizes and numbers."""

from __future__ import annotations

import ctypes
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from numl_serving.softmax_op import gated_softmax
from numl_serving.target import LEVELS, levels
from numl_serving.toolchain import build_kernel

OFFSETS = torch.tensor([0, 0, 1, 3, 3, 390, 400])
ROWS = 50


MARCHES = [level for level in levels() if level in LEVELS]


@pytest.fixture(scope="module", params=[*MARCHES, "x86-64"] if MARCHES else ["native"])
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("kernel")
    archive, linked = build_kernel("g++", folder, request.param), folder / "kernel.so"
    command = ["g++", "-shared", "-o", str(linked), "-Wl,--whole-archive", str(archive)]
    command += ["-Wl,--no-whole-archive", f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(linked))


def call(library: ctypes.CDLL, *tensors: torch.Tensor) -> torch.Tensor | None:
    """Call the function by torch's C interface, as a compiled iteration does; None: it refuses."""
    new, get = ctypes.pythonapi.PyCapsule_New, ctypes.pythonapi.PyCapsule_GetPointer
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))
    handles = [ctypes.c_void_p(get(capsule, None)) for capsule in capsules]
    result = ctypes.c_void_p()
    failed = library.aoti_torch_cpu_gated_softmax(*handles, ctypes.byref(result))
    torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(capsules)  # frees the handles
    if failed:
        return None
    return torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(new(result, None, None))


def inputs(width: int, scale: float = 3.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(width)
    table = scale * torch.randn(ROWS, width, generator=generator)
    rows = torch.randint(ROWS, (int(OFFSETS[-1]),), generator=generator)
    return table, rows, torch.rand(len(rows), generator=generator)


@pytest.mark.parametrize("width", [1, 5, 16, 31, 32, 64, 96, 128, 131])
@pytest.mark.parametrize("scale", [1e-3, 3.0, 1e4, 1e30])
def test_it_is_the_softmax_aggregate_of_each_segment(
    library: ctypes.CDLL, width: int, scale: float
) -> None:
    table, rows, gate = inputs(width, scale)
    actual = call(library, table, rows, gate, OFFSETS)
    assert actual is not None
    assert actual.shape == (6, width)
    messages = (table.index_select(0, rows) * gate[:, None]).double()
    for segment, (start, end) in enumerate(pairwise(OFFSETS.tolist())):
        part = messages[start:end]
        expected = (part * part.softmax(0)).sum(0).float()
        torch.testing.assert_close(actual[segment], expected, rtol=3e-6, atol=3e-6 * scale)


@pytest.mark.parametrize("width", [5, 128])
def test_the_operator_of_the_same_name_gives_the_same(library: ctypes.CDLL, width: int) -> None:
    table, rows, gate = inputs(width)
    actual = call(library, table, rows, gate, OFFSETS)
    torch.testing.assert_close(actual, gated_softmax(table, rows, gate, OFFSETS))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_own_segment_and_feature_alone(
    library: ctypes.CDLL, bad: float
) -> None:
    table, rows, gate = inputs(32)
    alone = torch.cat((table, table[:1]))
    rows[1] = ROWS  # the one that only the third segment gets a message from
    expected = call(library, alone, rows, gate, OFFSETS)
    alone[ROWS, 7] = bad
    actual = call(library, alone, rows, gate, OFFSETS)
    assert actual is not None
    spoilt = ~actual.isfinite()
    assert spoilt.nonzero().tolist() == [[2, 7]]
    torch.testing.assert_close(actual[~spoilt], expected[~spoilt], rtol=0, atol=0)


def test_far_smaller_messages_do_not_count(library: ctypes.CDLL) -> None:
    table = torch.tensor([[2.0], [-3e38]])
    rows, gate = torch.tensor([0, 1]), torch.ones(2)
    assert call(library, table, rows, gate, torch.tensor([0, 2])).tolist() == [[2.0]]


def test_without_any_message_or_segment_there_is_nothing_but_zeros(library: ctypes.CDLL) -> None:
    table, none = torch.ones(3, 8), torch.empty(0)
    rows = torch.empty(0, dtype=torch.int64)
    assert (
        call(library, table, rows, none, torch.zeros(3, dtype=torch.int64)).tolist()
        == [[0.0] * 8] * 2
    )
    assert call(library, table, rows, none, torch.zeros(1, dtype=torch.int64)).shape == (0, 8)


def test_a_table_that_is_not_contiguous_is_refused(library: ctypes.CDLL) -> None:
    table, rows, gate = inputs(32)
    assert call(library, table.t().contiguous().t(), rows, gate, OFFSETS) is None
