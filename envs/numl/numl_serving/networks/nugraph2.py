"""NuGraph2 for inference: the arithmetic of nugraph's own model, arranged for speed.

Every hit and every spacepoint has a feature vector per semantic class, and nearly every layer is
a separate linear layer per class (and per plane): here one batched matrix product over the
classes, on tensors whose first dimension is the class. An edge's weights are a softmax over the
classes of ``g([x_target, x_source])`` (nugraph's ``models/nugraph2/plane.py`` and ``nexus.py``),
where ``g`` is linear and therefore split into a part per target and a part per source, computed
once per node. The node then gets ``f([x_target, sum])`` of its weighted messages' sum. Weighted
sums over edges run over the table of ``class x node`` rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from numl_serving.event import PLANES
from numl_serving.networks.common import (
    GraphBatch,
    closed_offsets,
    segment_sum,
    segment_weighted_sum,
)
from numl_serving.networks.variants import IN_FEATURES, Spec

State = Mapping[str, Tensor]
Affine = tuple[Tensor, Tensor]
"""Weight ``[..., inputs, outputs]`` and bias ``[..., 1, outputs]``."""


class PlaneClassAffine(nn.Module):
    """One affine map per plane and class, on the hits of all planes, plane after plane.

    ``weight`` is ``[3, C, inputs, outputs]``, ``bias`` ``[3, C, 1, outputs]``.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.contiguous())
        self.register_buffer("bias", bias.contiguous())

    def forward(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Map ``[C, H, inputs]`` to ``[C, H, outputs]``; ``sizes`` are the hits per plane."""
        split = torch.split(x, list(sizes), dim=1)
        parts = zip(self.bias.unbind(), split, self.weight.unbind(), strict=True)
        return torch.cat([torch.baddbmm(bias, part, weight) for bias, part, weight in parts], dim=1)


class ClassBlock(nn.Module):
    """The weights of what one kind of edge does to the hits: an ``edge_net`` and a ``node_net``.

    For T features of a hit and F of a sending node; in the block between hits both include those
    that all classes share.

    Attributes:
        gate_target: ``[3, C, T]``, of the edge's score.
        gate_source: ``[3, C, F]``, of the edge's score.
        gate_bias: ``[3, C, 1]``.
        hidden_weight: ``[3, C, T + F, planar]``, for the hit's own features and the sum.
        hidden_bias: ``[3, C, 1, planar]``.
        output_weight: ``[3, C, planar, planar]``.
        output_bias: ``[3, C, 1, planar]``.
    """

    gate_target: Tensor
    gate_source: Tensor
    gate_bias: Tensor
    hidden_weight: Tensor
    hidden_bias: Tensor
    output_weight: Tensor
    output_bias: Tensor

    def __init__(self, gate: Affine, hidden: Affine, output: Affine, target_features: int) -> None:
        super().__init__()
        score, gate_bias = (each[..., 0] for each in gate)
        weights = {
            "gate_target": score[..., :target_features],
            "gate_source": score[..., target_features:],
            "gate_bias": gate_bias,
            "hidden_weight": hidden[0],
            "hidden_bias": hidden[1],
            "output_weight": output[0],
            "output_bias": output[1],
        }
        for name, tensor in weights.items():
            self.register_buffer(name, tensor.contiguous())

    def target_bias(self, sizes: Sequence[int]) -> Tensor:
        """Return the score's bias for each hit, ``[C, H]``; ``sizes`` are the hits per plane."""
        planes = zip(self.gate_bias.unbind(), sizes, strict=True)
        return torch.cat([bias.expand(-1, hits) for bias, hits in planes], dim=1)


class ClassNexus(nn.Module):
    """The weights of ``nexus_net``: two layers on the sum over a spacepoint's hits.

    Attributes:
        hidden_weight: ``[3, C, planar, nexus]``, the part of each plane: it can be applied to the
            hits, and what a spacepoint sums is then narrower.
        hidden_bias: ``[C, 1, nexus]``.
        output_weight: ``[C, nexus, nexus]``.
        output_bias: ``[C, 1, nexus]``.
    """

    hidden_weight: Tensor
    hidden_bias: Tensor
    output_weight: Tensor
    output_bias: Tensor

    def __init__(self, hidden: Affine, output: Affine) -> None:
        super().__init__()
        planes = torch.stack(hidden[0].chunk(len(PLANES), dim=1))
        self.register_buffer("hidden_weight", planes)
        self.register_buffer("hidden_bias", hidden[1])
        self.register_buffer("output_weight", output[0].contiguous())
        self.register_buffer("output_bias", output[1])


class State2(NamedTuple):
    """What an iteration changes.

    Attributes:
        hits: ``[C, H, planar]``, what the hits have learned, plane after plane.
    """

    hits: Tensor


class ClassMessages(NamedTuple):
    """E messages with a weight per class, sorted by the node that receives them.

    Attributes:
        rows: int64 ``[E]``, the node that sends each.
        weights: ``[C, E]``.
        offsets: int64 ``[M + 1]``, first message of each receiving node.
    """

    rows: Tensor
    weights: Tensor
    offsets: Tensor


class Update(Protocol):
    """A way to compute a block; see `update`."""

    def __call__(
        self,
        block: ClassBlock,
        target: Tensor,
        given: Tensor,
        source: Tensor,
        messages: ClassMessages,
        sizes: Sequence[int],
    ) -> Tensor:
        """Return ``[C, H, planar]``."""
        ...


def update(
    block: ClassBlock,
    target: Tensor,
    given: Tensor,
    source: Tensor,
    messages: ClassMessages,
    sizes: Sequence[int],
) -> Tensor:
    """Return the new features of the hits, which receive messages.

    Args:
        block: Its weights.
        target: ``[C, H, planar]``, features of the hits.
        given: ``[H, G]``, features that all classes share, of hits that both receive and send; G
            is 0 where other nodes send.
        source: ``[C, R, F]``, features of the nodes that send.
        messages: What they send.
        sizes: Number of hits of each plane.

    Returns:
        ``[C, H, planar]``.
    """
    if given.shape[1]:
        common = given.expand(target.shape[0], -1, -1)
        target, source = torch.cat((target, common), 2), torch.cat((source, common), 2)
    received = class_sum(source, messages.rows, messages.offsets, messages.weights)
    parts = zip(
        torch.split(target, list(sizes), dim=1),
        torch.split(received, list(sizes), dim=1),
        block.hidden_weight.unbind(),
        block.hidden_bias.unbind(),
        block.output_weight.unbind(),
        block.output_bias.unbind(),
        strict=True,
    )
    width = target.shape[2]
    updated = []
    for own, total, hidden_weight, hidden_bias, output_weight, output_bias in parts:
        hidden = torch.baddbmm(hidden_bias, own, hidden_weight[:, :width])
        hidden = torch.tanh(hidden.baddbmm_(total, hidden_weight[:, width:]))
        updated.append(torch.tanh(torch.baddbmm(output_bias, hidden, output_weight)))
    return torch.cat(updated, dim=1)


class UpdateNexus(Protocol):
    """A way to compute the spacepoints; see `update_nexus`."""

    def __call__(
        self, block: ClassNexus, hits: Tensor, batch: GraphBatch, sizes: Sequence[int]
    ) -> Tensor:
        """Return ``[C, S, nexus]``."""
        ...


def update_nexus(
    block: ClassNexus, hits: Tensor, batch: GraphBatch, sizes: Sequence[int]
) -> Tensor:
    """Return the features of the spacepoints.

    Args:
        block: The weights.
        hits: ``[C, H, planar]``.
        batch: The graph.
        sizes: Number of hits of each plane.

    Returns:
        ``[C, S, nexus]``.
    """
    parts = zip(torch.split(hits, list(sizes), dim=1), block.hidden_weight.unbind(), strict=True)
    sent = torch.cat([torch.bmm(part, weight) for part, weight in parts], dim=1)
    planes = class_sum(sent, batch.up_hit, batch.up_offsets)
    planes = planes.view(len(hits), len(PLANES), batch.spacepoint_event.shape[0], sent.shape[2])
    hidden = torch.tanh(planes.sum(1) + block.hidden_bias)
    return torch.tanh(torch.baddbmm(block.output_bias, hidden, block.output_weight))


def scores(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``[C, n]``, the products of features ``[C, n, F]`` with a vector per class."""
    # Several times faster this way round than with one column.
    return torch.bmm(weight[:, None], x.mT)[:, 0]


@dataclass(frozen=True, slots=True)
class Arithmetic2:
    """The functions of an iteration that a compiler may have other ones for.

    Attributes:
        update: Computes the hits.
        update_nexus: Computes the spacepoints.
        scores: Computes the parts of the edges' scores.
    """

    update: Update = update
    update_nexus: UpdateNexus = update_nexus
    scores: Callable[[Tensor, Tensor], Tensor] = scores


_PLAIN = Arithmetic2()


class NuGraph2(nn.Module):
    """The network; see the module's text.

    Args:
        spec: The widths.
        state: The weights by their names, exactly those of ``spec.expected()``.
        iterations: Number of message-passing iterations.
    """

    def __init__(self, spec: Spec, state: State, iterations: int) -> None:
        super().__init__()
        self.spec = spec
        self.iterations = iterations
        planar = spec.planar_features

        def layer(name: str) -> Affine:
            """Stack the weights ``[C, inputs, outputs]`` and biases ``[C, 1, outputs]``."""
            names = [f"{name}.net.{index}" for index in range(spec.semantic_classes)]
            weight = torch.stack([state[f"{each}.weight"].t() for each in names])
            return weight, torch.stack([state[f"{each}.bias"][None] for each in names])

        def plane_layer(pattern: str) -> Affine:
            weights, biases = zip(*(layer(pattern.format(p)) for p in PLANES), strict=True)
            return torch.stack(weights), torch.stack(biases)

        def block(pattern: str, target_features: int) -> ClassBlock:
            names = ("edge_net.0", "node_net.0", "node_net.2")
            gate, hidden, output = (plane_layer(f"{pattern}.{name}") for name in names)
            return ClassBlock(gate, hidden, output, target_features)

        self.encode = PlaneClassAffine(*plane_layer("encoder.net.{}.0"))
        self.plane = block("plane_net.net.{}", planar + IN_FEATURES)
        self.nexus = ClassNexus(layer("nexus_net.nexus_net.0"), layer("nexus_net.nexus_net.2"))
        self.down = block("nexus_net.nexus_down.{}", planar)

        # What a hit gives to each head, class by class: ``[3, C, heads, planar]``. The semantic
        # head has a layer per class, the filter head one for the classes together.
        heads = []
        if "semantic" in spec.heads:
            weight, bias = plane_layer("semantic_decoder.net.{}")
            heads.append(weight.mT)
            self.register_buffer("semantic_bias", bias[:, :, 0])
        if "filter" in spec.heads:
            names = [f"filter_decoder.net.{plane}.0" for plane in PLANES]
            weight = torch.stack([state[f"{name}.weight"] for name in names])
            heads.append(weight.view(len(PLANES), spec.semantic_classes, 1, planar))
            self.register_buffer("filter_bias", torch.stack([state[f"{n}.bias"] for n in names]))
        self.register_buffer("decode_weight", torch.cat(heads, dim=2))

    semantic_bias: Tensor
    filter_bias: Tensor
    decode_weight: Tensor

    def forward(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Answer a batch.

        Returns:
            By output name: ``x_semantic_{plane}`` ``[h, classes]`` (raw scores) and
            ``x_filter_{plane}`` ``[h]``, as far as the heads are there.
        """
        state = self.start(batch)
        for _ in range(self.iterations):
            state = self.iterate(state, batch)
        return self.decode(state, batch)

    def start(self, batch: GraphBatch) -> State2:
        """Return the features of the hits before the first iteration."""
        features = torch.cat(batch.features).expand(self.spec.semantic_classes, -1, -1)
        # The hyperbolic tangent, in less than half the time of torch's own.
        hits = self.encode(features, _sizes(batch)).mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)
        return State2(hits)

    def iterate(self, state: State2, batch: GraphBatch, arithmetic: Arithmetic2 = _PLAIN) -> State2:
        """Return the features after one more iteration.

        Args:
            state: The features before it.
            batch: The graph.
            arithmetic: The functions to use.
        """
        sizes = _sizes(batch)
        update = arithmetic.update
        planar, classes = self.spec.planar_features, self.spec.semantic_classes

        def scores(planes: Sequence[Tensor], weight: Tensor) -> Tensor:
            """Return ``[C, nodes of all planes]``; ``weight`` is ``[3, C, features]``."""
            parts = zip(planes, weight.unbind(), strict=True)
            return torch.cat([arithmetic.scores(*part) for part in parts], dim=1)

        learned = torch.split(state.hits, sizes, dim=1)
        own = [features.expand(classes, -1, -1) for features in batch.features]
        target, source = (
            scores(learned, weight[:, :, :planar]) + scores(own, weight[:, :, planar:])
            for weight in (self.plane.gate_target, self.plane.gate_source)
        )
        weights = _class_softmax(
            (target + self.plane.target_bias(sizes)).index_select(1, batch.edge_target)
            + source.index_select(1, batch.edge_source)
        )
        messages = ClassMessages(batch.edge_source, weights, batch.edge_offsets)
        given = torch.cat(batch.features)
        hits = update(self.plane, state.hits, given, state.hits, messages, sizes)

        nexus = arithmetic.update_nexus(self.nexus, hits, batch, sizes)
        target = scores(torch.split(hits, sizes, dim=1), self.down.gate_target)
        source = scores([nexus] * len(PLANES), self.down.gate_source)
        weights = _class_softmax(
            (target + self.down.target_bias(sizes)).index_select(1, batch.down_hit)
            + source.index_select(1, batch.down_segment)
        )
        # A hit gets the mean over its spacepoints.
        shares = 1.0 / batch.down_offsets.diff().to(hits.dtype)
        messages = ClassMessages(
            batch.down_spacepoint,
            weights * shares.index_select(0, batch.down_hit),
            batch.down_offsets,
        )
        return State2(update(self.down, hits, given[:, :0], nexus, messages, sizes))

    def decode(self, state: State2, batch: GraphBatch) -> dict[str, Tensor]:
        """Return the outputs by name; `forward` describes them."""
        outputs: dict[str, Tensor] = {}
        planes = torch.split(state.hits, _sizes(batch), dim=1)
        for index, (plane, part) in enumerate(zip(PLANES, planes, strict=True)):
            # A product with so few outputs is several times faster this way round.
            scores = torch.bmm(self.decode_weight[index], part.mT)
            if "semantic" in self.spec.heads:
                semantic = scores[:, 0] + self.semantic_bias[index]
                outputs[f"x_semantic_{plane}"] = semantic.t().contiguous()
            if "filter" in self.spec.heads:
                score = scores[:, -1].sum(0) + self.filter_bias[index]
                outputs[f"x_filter_{plane}"] = torch.sigmoid(score)
        return outputs


def class_sum(
    table: Tensor, rows: Tensor, offsets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Sum rows of a table by segment and class.

    Args:
        table: ``[C, R, F]``, features of the nodes that send.
        rows: int64 ``[E]``, the node that sends each message, sorted by segment.
        offsets: int64 ``[M + 1]``, first message of each segment.
        weights: ``[C, E]``; None: all are 1.

    Returns:
        ``[C, M, F]``, zero for empty segments.
    """
    classes, nodes, width = table.shape
    each = torch.arange(classes, device=table.device)[:, None]
    # One table with a row for each class and node.
    all_rows = (each * nodes + rows).view(-1)
    ends = closed_offsets(each * rows.shape[0] + offsets[:-1], all_rows.shape[0])
    flat = table.flatten(0, 1)
    if weights is None:
        sums = segment_sum(flat, ends, all_rows)
    else:
        sums = segment_weighted_sum(flat, all_rows, weights.flatten(), ends)
    return sums.view(classes, offsets.shape[0] - 1, width)


def _class_softmax(scores: Tensor) -> Tensor:
    """Return the weights ``[C, E]`` of the edges: over the classes they sum to 1."""
    return torch.softmax(scores, dim=0)


def _sizes(batch: GraphBatch) -> list[int]:
    """Return the numbers of hits per plane."""
    return [features.shape[0] for features in batch.features]
