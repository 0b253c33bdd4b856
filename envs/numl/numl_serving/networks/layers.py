"""Building blocks of the networks: per-plane linear layers and sums over a node's edges."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from numl_serving.networks.batch import Edges


class PlaneLinear(nn.Module):
    """A linear layer on nodes that come plane after plane.

    Args:
        weight: ``[P, outputs, inputs]``, or with a class dimension C ``[P, C, outputs, inputs]``;
            P is 1 where the planes share the layer.
        bias: ``[P, outputs]`` or ``[P, C, outputs]``.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.contiguous())
        self.register_buffer("bias", bias.contiguous())

    def forward(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Map ``[n, inputs]`` (``[C, n, inputs]``); ``sizes`` is the number of nodes by plane."""
        parts = (x,) if len(self.weight) == 1 else torch.split(x, list(sizes), dim=-2)
        each = zip(parts, self.weight, self.bias, strict=True)
        return _joined([_linear(*layer) for layer in each])


class Gate(nn.Module):
    """The score of every edge: a linear function of both its nodes' features.

    It is split into a part of each node, which is computed once per node and not per edge.

    Args:
        weight: ``[P, T + S]`` or ``[P, C, T + S]``, the receiving node's T features first.
        bias: ``[P]`` or ``[P, C]``.
        target_width: T.
    """

    def __init__(self, weight: Tensor, bias: Tensor, target_width: int) -> None:
        super().__init__()
        target, source = weight[..., None, :target_width], weight[..., None, target_width:]
        self.target = PlaneLinear(target, bias[..., None])
        self.source = PlaneLinear(source, torch.zeros_like(bias[..., None]))

    def forward(
        self,
        target: Tensor,
        source: Tensor,
        edges: Edges,
        target_sizes: Sequence[int],
        source_sizes: Sequence[int],
    ) -> Tensor:
        """Return the scores ``[E]`` (``[C, E]``); the sizes are those of `PlaneLinear`."""
        received: Tensor = self.target(target, target_sizes)[..., 0]
        sent: Tensor = self.source(source, source_sizes)[..., 0]
        return received.index_select(-1, edges.target) + sent.index_select(-1, edges.source)


def segment_sum(
    table: Tensor, rows: Tensor, offsets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Sum rows of a table by segment, without ever holding those of all edges in memory.

    Args:
        table: ``[R, F]``, features of the sending nodes.
        rows: int64 ``[E]``, the row of each edge, edges sorted by segment.
        offsets: int64 ``[M + 1]``, the first edge of each segment.
        weights: ``[E]``; None: all are 1.

    Returns:
        ``[M, F]``, zero for empty segments.
    """
    # Other than index_add, the same sums in the same order every time, on GPUs too.
    return functional.embedding_bag(
        rows,
        table,
        offsets,
        mode="sum",
        per_sample_weights=weights,
        include_last_offset=True,
    )


def softmax_aggregate(messages: Tensor, edges: Edges) -> Tensor:
    """Aggregate messages by their own softmax: for each node and feature ``sum(m softmax(m))``.

    This is PyTorch Geometric's ``SoftmaxAggregation`` with temperature 1. The largest message is
    subtracted first, so that no size of message overflows.

    Args:
        messages: ``[E, F]``, in the order of the edges.
        edges: Which node receives them.

    Returns:
        ``[M, F]``, zero for nodes without messages.
    """
    largest = messages.new_full((edges.offsets.shape[0] - 1, messages.shape[1]), -torch.inf)
    index = edges.target[:, None].expand_as(messages)
    largest = largest.scatter_reduce(0, index, messages, "amax")
    weights = torch.exp(messages - largest.index_select(0, edges.target))
    rows = torch.arange(messages.shape[0], device=messages.device)
    total = segment_sum(weights, rows, edges.offsets)
    # A node with messages has a total of at least 1: the clamp is for the others.
    return segment_sum(weights * messages, rows, edges.offsets) / total.clamp(min=1.0)


def class_sum(table: Tensor, edges: Edges, weights: Tensor) -> Tensor:
    """Sum weighted rows of a table by receiving node and class.

    Args:
        table: ``[C, R, F]``, features of the sending nodes.
        edges: The edges.
        weights: ``[C, E]``.

    Returns:
        ``[C, M, F]``, zero for nodes without edges.
    """
    classes, nodes, width = table.shape
    count = edges.source.shape[0]
    each = torch.arange(classes, device=table.device)[:, None]
    # One table with a row for each class and node, one list of segments class after class.
    rows = (each * nodes + edges.source).flatten()
    starts = (each * count + edges.offsets[:-1]).flatten()
    offsets = torch.cat((starts, starts.new_full((1,), classes * count)))
    return segment_sum(table.flatten(0, 1), rows, offsets, weights.flatten()).view(
        classes, -1, width
    )


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if weight.dim() == 2:
        return functional.linear(x, weight, bias)
    return torch.baddbmm(bias[:, None], x, weight.mT)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=-2)
