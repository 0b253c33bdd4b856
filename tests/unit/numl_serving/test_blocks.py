"""The C++ of the networks' blocks gives what its definition says, for all sizes and numbers."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from numl_serving.block_ops import class_block, class_nexus, gated_block
from numl_serving.target import LEVELS, levels
from numl_serving.toolchain import build_kernel
from torch import Tensor
from torch.nn import functional

MARCHES = [level for level in levels() if level in LEVELS]
# Of 35 receiving nodes: without messages, with one, with many.
OFFSETS = torch.tensor([0, 0, 1, 3, 3, 390, *range(391, 421)])
NODES, SENDERS = len(OFFSETS) - 1, 50


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


def call(library: ctypes.CDLL, name: str, *arguments: Tensor | Sequence[int] | int) -> Tensor:
    """Call a function by torch's C interface, as a compiled iteration does."""
    new, get = ctypes.pythonapi.PyCapsule_New, ctypes.pythonapi.PyCapsule_GetPointer
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensors = [each for each in arguments if isinstance(each, Tensor)]
    capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(tensors)
    handles = iter(capsules)
    passed: list[object] = []
    for each in arguments:
        if isinstance(each, Tensor):
            passed.append(ctypes.c_void_p(get(next(handles), None)))
        elif isinstance(each, int):
            passed.append(ctypes.c_int64(each))
        else:
            passed += [(ctypes.c_int64 * len(each))(*each), ctypes.c_int64(len(each))]
    result = ctypes.c_void_p()
    failed = library[f"aoti_torch_cpu_{name}"](*passed, ctypes.byref(result))
    torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(capsules)  # frees the handles
    assert not failed, f"{name} refuses"
    return torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(new(result, None, None))


def double(*arguments: Tensor | Sequence[int] | int) -> list[Tensor | Sequence[int] | int]:
    return [
        each.double() if isinstance(each, Tensor) and each.is_floating_point() else each
        for each in arguments
    ]


def layers(generator: torch.Generator, *shape: int) -> tuple[Tensor, Tensor]:
    *stack, inputs, outputs = shape
    weight = torch.randn(*stack, inputs, outputs, generator=generator) / inputs**0.5
    return weight, torch.randn(*stack, 1, outputs, generator=generator)


def gated(
    widths: tuple[int, int, int, int],
    sizes: Sequence[int] = (NODES,),
    scale: float = 1.0,
    offsets: Tensor = OFFSETS,
) -> tuple[Tensor | Sequence[int], ...]:
    """Return arguments of a block; widths of the target, the source, between and at the end."""
    target, source, hidden, outputs = widths
    edges = int(offsets[-1])
    generator = torch.Generator().manual_seed(sum(widths))
    hidden_weight, hidden_bias = layers(generator, len(sizes), source + target, hidden)
    output_weight, output_bias = layers(generator, len(sizes), hidden, outputs)
    return (
        torch.randn(len(offsets) - 1, target, generator=generator),
        scale * torch.randn(SENDERS, source, generator=generator),
        torch.randint(SENDERS, (edges,), generator=generator),
        torch.rand(edges, generator=generator),
        offsets,
        sizes,
        hidden_weight,
        hidden_bias[:, 0].contiguous(),
        output_weight,
        output_bias[:, 0].contiguous(),
    )


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Compare node by node: what one node gets may be many times what another gets.

    A node of few features may come out near zero, as the difference of numbers about one.
    """
    assert actual.shape == expected.shape
    if expected.numel():
        scale = expected.abs().amax(dim=-1, keepdim=True).clamp_min(0.1)
        torch.testing.assert_close(actual.double() / scale, expected / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "widths", [(1, 1, 1, 1), (3, 5, 7, 2), (16, 31, 33, 64), (32, 128, 32, 32), (128, 131, 96, 128)]
)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, 1e30])
def test_a_gated_block_is_what_its_operator_says(
    library: ctypes.CDLL, widths: tuple[int, int, int, int], scale: float
) -> None:
    arguments = gated(widths, scale=scale)
    assert_same(call(library, "gated_block", *arguments), gated_block(*double(*arguments)))


@pytest.mark.parametrize("sizes", [(35, 0, 0), (0, 1, 34), (11, 12, 12)])
def test_each_part_of_the_nodes_gets_its_own_weights(
    library: ctypes.CDLL, sizes: tuple[int, int, int]
) -> None:
    arguments = gated((32, 16, 32, 32), sizes)
    assert_same(call(library, "gated_block", *arguments), gated_block(*double(*arguments)))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_own_node_alone(library: ctypes.CDLL, bad: float) -> None:
    target, source, rows, *rest = gated((32, 32, 32, 32))
    assert isinstance(source, Tensor)
    assert isinstance(rows, Tensor)
    source = torch.cat((source, source[:1]))
    rows[1] = SENDERS  # the one that only the third node gets a message from
    expected = call(library, "gated_block", target, source, rows, *rest)
    source[SENDERS, 7] = bad
    actual = call(library, "gated_block", target, source, rows, *rest)
    assert set((~actual.isfinite()).nonzero()[:, 0].tolist()) == {2}
    others = torch.arange(NODES) != 2
    torch.testing.assert_close(actual[others], expected[others], rtol=0, atol=0)


def identity(values: Tensor) -> list[Tensor | Sequence[int]]:
    """Return arguments after which the layers leave nothing but their functions."""
    one, none = torch.ones(1, 1, 1), torch.zeros(1, 1)
    first_of_two = torch.tensor([[[0.0], [1.0]]])
    rows = torch.empty(0, dtype=torch.int64)
    offsets = torch.zeros(len(values) + 1, dtype=torch.int64)
    return [values[:, None], torch.ones(1, 1), rows, torch.empty(0), offsets, [len(values)],
            first_of_two, none, one, none]  # fmt: skip


NUMBERS = torch.cat(
    (torch.linspace(-90, 90, 20001), torch.tensor([1e-30, -1e-6, 20.0, 1e30, -3e38]))
)


def test_its_mish_has_the_precision_of_float32(library: ctypes.CDLL) -> None:
    actual = call(library, "gated_block", *identity(NUMBERS))[:, 0].double()
    expected = functional.mish(functional.mish(NUMBERS.double()))
    torch.testing.assert_close(actual, expected, rtol=3e-6, atol=1e-36)
    assert call(library, "gated_block", *identity(torch.tensor([torch.nan]))).isnan().all()


def test_far_smaller_messages_do_not_count(library: ctypes.CDLL) -> None:
    _, _, _, _, _, *rest = identity(torch.zeros(1))
    source, rows = torch.tensor([[25.0], [-3e38]]), torch.tensor([0, 1])
    first = torch.tensor([[[1.0], [0.0]]])
    rest[1] = first
    arguments = (torch.zeros(1, 1), source, rows, torch.ones(2), torch.tensor([0, 2]), *rest)
    assert call(library, "gated_block", *arguments).tolist() == [[25.0]]


def classed(
    widths: tuple[int, int, int, int, int], sizes: Sequence[int], offsets: Tensor = OFFSETS
) -> tuple[Tensor | Sequence[int], ...]:
    """Return arguments of a block of 5 classes; widths as before, with that of what is given."""
    target, given, source, hidden, outputs = widths
    nodes, edges = len(offsets) - 1, int(offsets[-1])
    generator = torch.Generator().manual_seed(sum(widths))
    common = 2 * given
    return (
        torch.randn(5, nodes, target, generator=generator),
        torch.randn(nodes, given, generator=generator),
        torch.randn(5, nodes, source, generator=generator),
        torch.randint(max(nodes, 1), (edges,), generator=generator),
        torch.rand(5, edges, generator=generator) / 20,
        offsets,
        sizes,
        *layers(generator, len(sizes), 5, target + source + common, hidden),
        *layers(generator, len(sizes), 5, hidden, outputs),
    )


@pytest.mark.parametrize(
    "widths", [(1, 0, 1, 1, 1), (3, 2, 5, 7, 2), (64, 4, 64, 64, 64), (64, 0, 16, 64, 64)]
)
@pytest.mark.parametrize("sizes", [(35, 0, 0), (0, 1, 34), (11, 12, 12)])
def test_a_class_block_is_what_its_operator_says(
    library: ctypes.CDLL, widths: tuple[int, int, int, int, int], sizes: tuple[int, int, int]
) -> None:
    arguments = classed(widths, sizes)
    assert_same(call(library, "class_block", *arguments), class_block(*double(*arguments)))


def tanh_of_tanh(library: ctypes.CDLL, numbers: Tensor) -> Tensor:
    """Call a block whose layers leave nothing but their functions."""
    one, none = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
    target, _, rows, weights, offsets, sizes, *_ = identity(numbers)
    assert isinstance(target, Tensor)
    assert isinstance(weights, Tensor)
    given = torch.empty(len(numbers), 0)
    weight = torch.tensor([[[[1.0], [0.0]]]])
    return call(library, "class_block", target[None], given, torch.ones(1, 1, 1), rows,
                weights[None], offsets, sizes, weight, none, one, none)[0, :, 0]  # fmt: skip


def test_its_tanh_has_the_precision_of_float32(library: ctypes.CDLL) -> None:
    numbers = torch.cat((NUMBERS, torch.tensor([torch.inf, -torch.inf])))
    expected = numbers.double().tanh().tanh()
    actual = tanh_of_tanh(library, numbers).double()
    torch.testing.assert_close(actual, expected, rtol=9e-7, atol=0)
    assert tanh_of_tanh(library, torch.tensor([torch.nan])).isnan().all()


@pytest.mark.parametrize("widths", [(1, 1, 1), (7, 5, 3), (64, 16, 16)])
@pytest.mark.parametrize("spacepoints", [0, 1, 40])
def test_a_class_nexus_is_what_its_operator_says(
    library: ctypes.CDLL, widths: tuple[int, int, int], spacepoints: int
) -> None:
    inputs, hidden, outputs = widths
    generator = torch.Generator().manual_seed(sum(widths))
    edges = 7 * spacepoints
    segment = torch.randint(3 * max(spacepoints, 1), (edges,), generator=generator)
    offsets = torch.searchsorted(segment.sort().values, torch.arange(3 * spacepoints + 1))
    weight, _ = layers(generator, 3, 5, inputs, hidden)
    arguments = (
        torch.randn(5, NODES, inputs, generator=generator),
        torch.randint(NODES, (edges,), generator=generator),
        offsets,
        (11, 12, 12),
        spacepoints,
        weight,
        torch.randn(5, 1, hidden, generator=generator),
        *layers(generator, 5, hidden, outputs),
    )
    assert_same(call(library, "class_nexus", *arguments), class_nexus(*double(*arguments)))


def test_without_any_node_nothing_comes_out(library: ctypes.CDLL) -> None:
    nobody = torch.zeros(1, dtype=torch.int64)
    arguments = gated((32, 16, 32, 8), [0], offsets=nobody)
    assert call(library, "gated_block", *arguments).shape == (0, 8)
    arguments = classed((16, 4, 16, 32, 8), [0, 0, 0], offsets=nobody)
    assert call(library, "class_block", *arguments).shape == (5, 0, 8)


GATED = gated((32, 32, 32, 32))
CLASSED = classed((32, 4, 32, 32, 32), (11, 12, 12))


@pytest.mark.parametrize(
    ("name", "given", "number"),
    [("gated_block", GATED, n) for n in (0, 1, 6)]
    + [("class_block", CLASSED, n) for n in (0, 2, 4, 7)],
)
def test_what_is_not_contiguous_is_refused(
    library: ctypes.CDLL, name: str, given: Sequence[Tensor | Sequence[int]], number: int
) -> None:
    arguments = list(given)
    turned = arguments[number]
    assert isinstance(turned, Tensor)
    arguments[number] = turned.mT.contiguous().mT
    with pytest.raises(AssertionError, match="refuses"):
        call(library, name, *arguments)


@pytest.mark.parametrize(
    ("name", "given", "sizes"), [("gated_block", GATED, 5), ("class_block", CLASSED, 6)]
)
def test_what_does_not_fit_together_is_refused(
    library: ctypes.CDLL, name: str, given: Sequence[Tensor | Sequence[int]], sizes: int
) -> None:
    fewer = [*given[:sizes], [NODES - 1], *given[sizes + 1 :]]
    target = given[0]
    assert isinstance(target, Tensor)
    wider = [torch.cat((target, target), -1), *given[1:]]
    for arguments in (fewer, wider):
        with pytest.raises(AssertionError, match="refuses"):
            call(library, name, *arguments)
