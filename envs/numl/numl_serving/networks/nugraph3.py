"""NuGraph3 for inference: the arithmetic of nugraph's own model, arranged for speed.

One class serves both variants. They differ in whether the planes share their weights, in whether
a spacepoint gets the sum or the concatenation of the planes' contributions, in whether spacepoints
start from their position or from zero, and in whether classes are given as probabilities or as
raw scores.

An iteration is five blocks (``NuGraphBlock`` in nugraph's ``models/nugraph3/core.py``): hit to hit,
hit to spacepoint, spacepoint to event, event to spacepoint, spacepoint to hit. The message of a
block is ``sigmoid(g([x_target, x_source])) x_source``, aggregated by a softmax; the node then gets
``f([aggregate, x_target])``. ``g`` is linear, and split into a part per target and a part per
source, computed once per node instead of once per edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from numl_serving.event import PLANES
from numl_serving.networks.common import Aggregate, GraphBatch, gated_softmax_aggregate, mish
from numl_serving.networks.variants import Spec

State = Mapping[str, Tensor]


class Block(nn.Module):
    """The weights of one kind of ``NuGraphBlock``, and the scores of its gate.

    Nodes come in parts, plane after plane, where the planes do not share their weights: P sets of
    weights for T features of a receiving node, F of a sending one and O that come out.

    Attributes:
        gate_target: ``[P, T]``.
        gate_source: ``[P, F]``.
        gate_bias: ``[P]``.
        hidden_weight: ``[P, F + T, O]``, for the aggregate and the receiving node's own features.
        hidden_bias: ``[P, O]``.
        output_weight: ``[P, O, O]``.
        output_bias: ``[P, O]``.
    """

    gate_target: Tensor
    gate_source: Tensor
    gate_bias: Tensor
    hidden_weight: Tensor
    hidden_bias: Tensor
    output_weight: Tensor
    output_bias: Tensor

    def __init__(self, state: State, names: Sequence[str], target_features: int) -> None:
        super().__init__()

        def stacked(layer: str) -> Tensor:
            return torch.stack([state[f"{name}.{layer}"] for name in names])

        gate = stacked("edge_net.0.weight")[:, 0]
        weights = {
            "gate_target": gate[:, :target_features],
            "gate_source": gate[:, target_features:],
            "gate_bias": stacked("edge_net.0.bias")[:, 0],
            "hidden_weight": stacked("net.0.weight").mT,
            "hidden_bias": stacked("net.0.bias"),
            "output_weight": stacked("net.2.weight").mT,
            "output_bias": stacked("net.2.bias"),
        }
        for name, tensor in weights.items():
            self.register_buffer(name, tensor.contiguous())

    def target_scores(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return a receiving node's part of the gate's score.

        Args:
            x: ``[M, T]``.
            sizes: Number of nodes of each part.
        """
        return _scores(x, sizes, self.gate_target, self.gate_bias)

    def source_scores(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return a sending node's part of the gate's score; ``x`` is ``[R, F]``."""
        return _scores(x, sizes, self.gate_source)


def _scores(x: Tensor, sizes: Sequence[int], weight: Tensor, bias: Tensor | None = None) -> Tensor:
    parts = (x,) if len(weight) == 1 else torch.split(x, list(sizes))
    scores = [part @ each for part, each in zip(parts, weight.unbind(), strict=True)]
    if bias is not None:
        scores = [score + each for score, each in zip(scores, bias.unbind(), strict=True)]
    return scores[0] if len(scores) == 1 else torch.cat(scores)


class Messages(NamedTuple):
    """E gated messages, sorted by the node that receives them.

    Attributes:
        rows: int64 ``[E]``, the node that sends each.
        gate: ``[E]``, its factor, from 0 to 1.
        segment: int64 ``[E]``, the node that receives it, ascending.
        offsets: int64 ``[M + 1]``, first message of each receiving node.
    """

    rows: Tensor
    gate: Tensor
    segment: Tensor
    offsets: Tensor


class Update(Protocol):
    """A way to compute a block; see `update`."""

    def __call__(
        self, block: Block, target: Tensor, source: Tensor, messages: Messages, sizes: Sequence[int]
    ) -> Tensor:
        """Return ``[M, O]``."""
        ...


def update(
    block: Block,
    target: Tensor,
    source: Tensor,
    messages: Messages,
    sizes: Sequence[int],
    aggregate: Aggregate = gated_softmax_aggregate,
) -> Tensor:
    """Return the new features of nodes that receive messages.

    Args:
        block: Its weights.
        target: ``[M, T]``, features of the nodes that receive.
        source: ``[R, F]``, features of the nodes that send.
        messages: What they send.
        sizes: Number of receiving nodes of each part that has weights of its own.
        aggregate: The softmax aggregation to use.

    Returns:
        ``[M, O]``.
    """
    received = aggregate(source, *messages)
    split = [target.shape[0]] if len(block.hidden_weight) == 1 else list(sizes)
    parts = zip(
        torch.split(received, split),
        torch.split(target, split),
        block.hidden_weight.unbind(),
        block.hidden_bias.unbind(),
        block.output_weight.unbind(),
        block.output_bias.unbind(),
        strict=True,
    )
    width = source.shape[1]
    updated = []
    for aggregated, own, hidden_weight, hidden_bias, output_weight, output_bias in parts:
        hidden = torch.addmm(hidden_bias, aggregated, hidden_weight[:width])
        hidden = mish(hidden.addmm_(own, hidden_weight[width:]))
        updated.append(mish(torch.addmm(output_bias, hidden, output_weight)))
    return updated[0] if len(updated) == 1 else torch.cat(updated)


class Affine(nn.Module):
    """An affine map, ``x W + b``."""

    weight: Tensor
    bias: Tensor

    def __init__(self, state: State, name: str) -> None:
        super().__init__()
        self.register_buffer("weight", state[f"{name}.weight"].t().contiguous())
        self.register_buffer("bias", state[f"{name}.bias"])

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[n, inputs]`` to ``[n, outputs]``."""
        return torch.addmm(self.bias, x, self.weight)


class PlaneAffine(nn.Module):
    """An affine map on the hits, with one matrix for all planes or with one for each.

    Its rows are the hits of all planes, plane after plane.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        super().__init__()
        self.register_buffer("weight", torch.stack(list(weights)).contiguous())
        self.register_buffer("bias", torch.stack(list(biases)))

    def forward(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Map ``[H, inputs]`` to ``[H, outputs]``; ``sizes`` are the numbers of hits per plane."""
        if len(self.weight) == 1:
            return torch.addmm(self.bias[0], x, self.weight[0])
        parts = zip(self.bias.unbind(), torch.split(x, list(sizes)), self.weight.unbind(),
                    strict=True)  # fmt: skip
        return torch.cat([torch.addmm(bias, part, weight) for bias, part, weight in parts])


class HitDecoder(nn.Module):
    """The semantic and the filter head of each plane as one map; their weights are never shared.

    Args:
        state: The weights.
        names: Names of the heads' layers, with a place for the plane.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, state: State, names: Sequence[str]) -> None:
        super().__init__()

        def stacked(kind: str) -> Tensor:
            heads = ([state[f"{name.format(plane)}.{kind}"] for name in names] for plane in PLANES)
            return torch.stack([torch.cat(tensors) for tensors in heads])

        self.register_buffer("weight", stacked("weight"))
        self.register_buffer("bias", stacked("bias")[:, :, None])

    def forward(self, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Map ``[H, inputs]`` to ``[outputs, h]`` for each plane, with ``sizes`` hits."""
        # A product with so few outputs is several times faster this way round.
        parts = zip(self.bias.unbind(), self.weight.unbind(), torch.split(x, list(sizes)),
                    strict=True)  # fmt: skip
        return [torch.addmm(bias, weight, part.t()) for bias, weight, part in parts]


class State3(NamedTuple):
    """What an iteration changes: the features of hits, spacepoints and events.

    Attributes:
        hits: ``[H, planar]``, plane after plane.
        nexus: ``[S, nexus]``.
        event: ``[B, interaction]``.
    """

    hits: Tensor
    nexus: Tensor
    event: Tensor


class NuGraph3(nn.Module):
    """The network; see the module's text.

    Args:
        spec: The variant and its widths.
        state: The weights by their canonical names, exactly those of ``spec.expected()``.
        iterations: Number of message-passing iterations.
    """

    def __init__(self, spec: Spec, state: State, iterations: int) -> None:
        super().__init__()
        self.spec = spec
        self.iterations = iterations
        shared = spec.variant == "24.7.1"
        # Weights that the planes share appear once per plane in the state dict, all the same.
        planes = PLANES[:1] if shared else PLANES
        planar, nexus = spec.planar_features, spec.nexus_features
        merged = nexus if shared else len(PLANES) * nexus

        def block(pattern: str, target_features: int, planes: Sequence[str] = planes) -> Block:
            names = [pattern.format(plane=plane) for plane in planes]
            return Block(state, [f"core_net.{name}" for name in names], target_features)

        self.plane = block("plane_net.convs.<{plane}___plane___{plane}>", planar)
        self.up = block("plane_to_nexus.convs.<{plane}___nexus___sp>", nexus)
        self.down = block("nexus_to_plane.convs.<sp___nexus___{plane}>", planar)
        self.to_event = block(
            "nexus_to_interaction.convs.<sp___in___evt>", spec.interaction_features, ("",)
        )
        self.from_event = block("interaction_to_nexus.convs.<evt___owns___sp>", merged, ("",))

        names = ["encoder.planar_net"] if shared else [f"encoder.lins.{p}" for p in PLANES]
        self.encode = PlaneAffine(
            [state[f"{name}.weight"].t() for name in names],
            [state[f"{name}.bias"] for name in names],
        )
        self.encode_position = Affine(state, "encoder.nexus_net") if shared else None
        heads = {"semantic": "semantic_decoder.net.{}", "filter": "filter_decoder.net.{}.0"}
        there = [name for head, name in heads.items() if head in spec.heads]
        self.decode_hits = HitDecoder(state, there) if there else None
        self.decode_event = Affine(state, "event_decoder.net") if "event" in spec.heads else None
        self.decode_vertex = Affine(state, "vertex_decoder.net") if "vertex" in spec.heads else None

    def forward(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Answer a batch.

        Returns:
            By output name: ``x_semantic_{plane}`` ``[h, classes]``, ``x_filter_{plane}`` ``[h]``,
            ``e_evt`` ``[B, classes]``, ``v_evt`` ``[B, 3]``, as far as the heads are there.
        """
        state = self.start(batch)
        for _ in range(self.iterations):
            state = self.iterate(state, batch)
        return self.decode(state, batch)

    def start(self, batch: GraphBatch) -> State3:
        """Return the features of hits, spacepoints and events before the first iteration."""
        position = batch.spacepoint_position
        spacepoints, events = position.shape[0], batch.spacepoint_offsets.shape[0] - 1
        hits: Tensor = self.encode(torch.cat(batch.features), _sizes(batch))
        if self.encode_position is None:
            nexus = position.new_zeros((spacepoints, self.spec.nexus_features))
        else:
            nexus = self.encode_position(position)
        return State3(hits, nexus, position.new_zeros((events, self.spec.interaction_features)))

    def iterate(self, state: State3, batch: GraphBatch, update: Update = update) -> State3:
        """Return the features after one more iteration.

        Args:
            state: The features before it.
            batch: The graph.
            update: How to compute a block.
        """
        hits, nexus, event = state
        spacepoints = nexus.shape[0]
        sizes, segments = _sizes(batch), [spacepoints] * len(PLANES)

        gate = torch.sigmoid(
            self.plane.target_scores(hits, sizes).index_select(0, batch.edge_target)
            + self.plane.source_scores(hits, sizes).index_select(0, batch.edge_source)
        )
        messages = Messages(batch.edge_source, gate, batch.edge_target, batch.edge_offsets)
        hits = update(self.plane, hits, hits, messages, sizes)

        # A spacepoint receives from each plane apart.
        target = nexus.repeat(len(PLANES), 1)
        gate = torch.sigmoid(
            self.up.target_scores(target, segments).index_select(0, batch.up_segment)
            + self.up.source_scores(hits, sizes).index_select(0, batch.up_hit)
        )
        messages = Messages(batch.up_hit, gate, batch.up_segment, batch.up_offsets)
        planes = update(self.up, target, hits, messages, segments)
        planes = planes.view(len(PLANES), spacepoints, self.spec.nexus_features)
        if self.spec.variant == "24.7.1":
            merged = planes.sum(0)
        else:
            merged = planes.transpose(0, 1).flatten(1)

        every = torch.arange(spacepoints + 1, device=merged.device)
        one, owner = [event.shape[0]], batch.spacepoint_event
        gate = torch.sigmoid(
            self.to_event.target_scores(event, one).index_select(0, owner)
            + self.to_event.source_scores(merged, [spacepoints])
        )
        messages = Messages(every[:-1], gate, owner, batch.spacepoint_offsets)
        event = update(self.to_event, event, merged, messages, one)

        gate = torch.sigmoid(
            self.from_event.target_scores(merged, [spacepoints])
            + self.from_event.source_scores(event, one).index_select(0, owner)
        )
        messages = Messages(owner, gate, every[:-1], every)
        nexus = update(self.from_event, merged, event, messages, [spacepoints])

        scores = self.down.source_scores(nexus.repeat(len(PLANES), 1), segments)
        gate = torch.sigmoid(
            self.down.target_scores(hits, sizes).index_select(0, batch.down_hit)
            + scores.index_select(0, batch.down_segment)
        )
        messages = Messages(batch.down_spacepoint, gate, batch.down_hit, batch.down_offsets)
        return State3(update(self.down, hits, nexus, messages, sizes), nexus, event)

    def decode(self, state: State3, batch: GraphBatch) -> dict[str, Tensor]:
        """Return the outputs by name; `forward` describes them."""
        hits, event, sizes = state.hits, state.event, _sizes(batch)
        probabilities = self.spec.variant == "24.7.1"
        outputs: dict[str, Tensor] = {}
        if self.decode_hits is not None:
            for plane, part in zip(PLANES, self.decode_hits(hits, sizes), strict=True):
                if "semantic" in self.spec.heads:
                    semantic = part[: self.spec.semantic_classes]
                    semantic = semantic.softmax(0) if probabilities else semantic
                    outputs[f"x_semantic_{plane}"] = semantic.t().contiguous()
                if "filter" in self.spec.heads:
                    outputs[f"x_filter_{plane}"] = torch.sigmoid(part[-1])
        if self.decode_event is not None:
            scores = self.decode_event(event)
            outputs["e_evt"] = scores.softmax(1) if probabilities else scores
        if self.decode_vertex is not None:
            outputs["v_evt"] = self.decode_vertex(event)
        return outputs


def _sizes(batch: GraphBatch) -> list[int]:
    """Return the numbers of hits per plane."""
    return [features.shape[0] for features in batch.features]
