"""The operators that ``blocks.cpp`` implements, as torch has to know them to compile.

A compiled iteration calls the C++ functions themselves: where it only runs, nobody needs this
module.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from numl_serving.networks.common import gated_softmax_aggregate, mish
from numl_serving.networks.nugraph2 import class_sum


@torch.library.custom_op("numl::gated_block", mutates_args=())
def gated_block(
    target: Tensor,
    source: Tensor,
    rows: Tensor,
    gate: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    hidden_weight: Tensor,
    hidden_bias: Tensor,
    output_weight: Tensor,
    output_bias: Tensor,
) -> Tensor:
    """Compute a block of NuGraph3: gated messages, their softmax aggregate, two layers.

    Args:
        target: ``[M, T]``, features of the nodes that receive.
        source: ``[R, F]``, features of the nodes that send.
        rows: int64 ``[E]``, the node that sends each message.
        gate: ``[E]``, factor of each message.
        offsets: int64 ``[M + 1]``, first message of each node that receives.
        sizes: Number of receiving nodes for each of the P sets of weights.
        hidden_weight: ``[P, F + T, D]``.
        hidden_bias: ``[P, D]``.
        output_weight: ``[P, D, O]``.
        output_bias: ``[P, O]``.

    Returns:
        ``[M, O]``.
    """
    segment = torch.arange(len(target)).repeat_interleave(offsets.diff())
    received = gated_softmax_aggregate(source, rows, gate, segment, offsets)
    parts = torch.split(torch.cat((received, target), 1), list(sizes))
    hidden = [
        mish(torch.addmm(bias, part, weight))
        for bias, part, weight in zip(hidden_bias, parts, hidden_weight, strict=True)
    ]
    layers = zip(output_bias, hidden, output_weight, strict=True)
    return torch.cat([mish(torch.addmm(bias, part, weight)) for bias, part, weight in layers])


@gated_block.register_fake
def _(
    target: Tensor,
    source: Tensor,
    rows: Tensor,
    gate: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    hidden_weight: Tensor,
    hidden_bias: Tensor,
    output_weight: Tensor,
    output_bias: Tensor,
) -> Tensor:
    return target.new_empty((target.shape[0], output_weight.shape[2]))


@torch.library.custom_op("numl::class_block", mutates_args=())
def class_block(
    target: Tensor,
    given: Tensor,
    source: Tensor,
    rows: Tensor,
    weights: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    hidden_weight: Tensor,
    hidden_bias: Tensor,
    output_weight: Tensor,
    output_bias: Tensor,
) -> Tensor:
    """Compute a block of NuGraph2, for C classes: weighted messages, their sum, two layers.

    Args:
        target: ``[C, M, T]``, features of the nodes that receive.
        given: ``[M, G]``, features that all classes share, of nodes that both receive and send; G
            is 0 where others send.
        source: ``[C, R, F]``, features of the nodes that send.
        rows: int64 ``[E]``, the node that sends each message.
        weights: ``[C, E]``, factors of each message.
        offsets: int64 ``[M + 1]``, first message of each node that receives.
        sizes: Number of receiving nodes for each of the P sets of weights.
        hidden_weight: ``[P, C, T + G + F + G, D]``.
        hidden_bias: ``[P, C, 1, D]``.
        output_weight: ``[P, C, D, O]``.
        output_bias: ``[P, C, 1, O]``.

    Returns:
        ``[C, M, O]``.
    """
    common = given.expand(len(target), -1, -1)
    sent = torch.cat((source, common), 2) if given.shape[1] else source
    received = class_sum(sent, rows, offsets, weights)
    parts = torch.split(torch.cat((target, common, received), 2), list(sizes), 1)
    layers = zip(parts, hidden_weight, hidden_bias, output_weight, output_bias, strict=True)
    return torch.cat(
        [
            torch.tanh(torch.baddbmm(b, torch.tanh(torch.baddbmm(a, part, weight)), output))
            for part, weight, a, output, b in layers
        ],
        1,
    )


@class_block.register_fake
def _(
    target: Tensor,
    given: Tensor,
    source: Tensor,
    rows: Tensor,
    weights: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    hidden_weight: Tensor,
    hidden_bias: Tensor,
    output_weight: Tensor,
    output_bias: Tensor,
) -> Tensor:
    return target.new_empty((target.shape[0], target.shape[1], output_weight.shape[3]))


@torch.library.custom_op("numl::class_nexus", mutates_args=())
def class_nexus(
    hits: Tensor,
    rows: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    spacepoints: int,
    hidden_weight: Tensor,
    hidden_bias: Tensor,
    output_weight: Tensor,
    output_bias: Tensor,
) -> Tensor:
    """Compute NuGraph2's spacepoints, for C classes: two layers on the sum over their hits.

    Args:
        hits: ``[C, H, T]``.
        rows: int64 ``[N]``, the hit of each nexus edge.
        offsets: int64 ``[P S + 1]``, first edge of each nexus segment.
        sizes: Number of hits of each of the P planes.
        spacepoints: Their number, S.
        hidden_weight: ``[P, C, T, D]``.
        hidden_bias: ``[C, 1, D]``.
        output_weight: ``[C, D, O]``.
        output_bias: ``[C, 1, O]``.

    Returns:
        ``[C, S, O]``.
    """
    parts = zip(torch.split(hits, list(sizes), 1), hidden_weight, strict=True)
    sent = torch.cat([torch.bmm(part, weight) for part, weight in parts], 1)
    shape = (len(hits), len(sizes), spacepoints, hidden_weight.shape[3])
    planes = class_sum(sent, rows, offsets).view(shape)
    hidden = torch.tanh(planes.sum(1) + hidden_bias)
    return torch.tanh(torch.baddbmm(output_bias, hidden, output_weight))


@class_nexus.register_fake
def _(
    hits: Tensor,
    rows: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    spacepoints: int,
    hidden_weight: Tensor,
    hidden_bias: Tensor,
    output_weight: Tensor,
    output_bias: Tensor,
) -> Tensor:
    return hits.new_empty((hits.shape[0], spacepoints, output_weight.shape[2]))


def _shim(name: str, tensors: int, *numbers: str) -> str:
    """Declare a C++ function: tensors, sizes, numbers, the four of the layers, the result."""
    handle = "AtenTensorHandle"
    sizes = ["const int64_t*", "int64_t"]
    arguments = [*[handle] * tensors, *sizes, *numbers, *[handle] * 4, f"{handle}*"]
    return f"AOTITorchError aoti_torch_cpu_{name}({', '.join(arguments)})"


SHIMS = {
    torch.ops.numl.gated_block.default: [_shim("gated_block", 5)],
    torch.ops.numl.class_block.default: [_shim("class_block", 6)],
    torch.ops.numl.class_nexus.default: [_shim("class_nexus", 3, "int64_t")],
}
"""Declarations of the C++ functions, under the names that Inductor gives them."""
