"""NuGraph3 for inference: the arithmetic of nugraph's own model, arranged for speed.

One class serves both variants. They differ in whether the planes share their weights, in whether
a spacepoint gets the sum or the concatenation of the planes' contributions, in whether spacepoints
start from their position or from zero, and in whether classes are given as probabilities or as
raw scores.

The message of a block is ``sigmoid(g([x_target, x_source])) x_source``, aggregated by a softmax;
the node then gets ``f([aggregate, x_target])`` (``NuGraphBlock`` in nugraph's
``models/nugraph3/core.py``). Both ``g`` and the first layer of ``f`` are linear, so that each is
split into a part per target and a part per source, computed once per node instead of once per
edge. What different blocks need of the same node comes out of one matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from numl_serving.event import PLANES
from numl_serving.networks.common import Aggregate, GraphBatch, gated_softmax_aggregate, mish
from numl_serving.networks.variants import Spec

State = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Block:
    """The weights of one ``NuGraphBlock``; matrices are ``[inputs, outputs]``."""

    gate_target: Tensor
    gate_source: Tensor
    gate_bias: Tensor
    hidden_aggregate: Tensor
    hidden_target: Tensor
    hidden_bias: Tensor
    output: Tensor
    output_bias: Tensor

    @classmethod
    def read(cls, state: State, name: str, target_features: int) -> Block:
        """Take a block out of a state dict and split its first layers."""
        gate = state[f"{name}.edge_net.0.weight"].t()
        hidden = state[f"{name}.net.0.weight"].t()
        source_features = hidden.shape[0] - target_features
        return cls(
            gate_target=gate[:target_features],
            gate_source=gate[target_features:],
            gate_bias=state[f"{name}.edge_net.0.bias"],
            hidden_aggregate=hidden[:source_features],
            hidden_target=hidden[source_features:],
            hidden_bias=state[f"{name}.net.0.bias"],
            output=state[f"{name}.net.2.weight"].t(),
            output_bias=state[f"{name}.net.2.bias"],
        )


class Affine(nn.Module):
    """An affine map whose columns may serve several purposes: ``x W + b``."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        super().__init__()
        self.register_buffer("weight", torch.cat(list(weights), dim=1).contiguous())
        self.register_buffer("bias", torch.cat(list(biases)))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[n, inputs]`` to ``[n, outputs]``."""
        return (x @ self.weight).add_(self.bias)


class PlaneProduct(nn.Module):
    """A matrix product on the hits, with one matrix for all planes or with one for each.

    Its rows are the hits of all planes, plane after plane.
    """

    weight: Tensor

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.register_buffer("weight", torch.stack(list(weights)).contiguous())

    def forward(self, x: Tensor, sizes: list[int], plus: Tensor) -> Tensor:
        """Map ``[H, inputs]`` to ``[H, outputs]`` and add; ``sizes`` are the hits per plane."""
        terms = (plus,) if self.weight.shape[0] == 1 else torch.split(plus, sizes)
        return self.add(terms, x, sizes)

    def add(self, terms: Sequence[Tensor], x: Tensor, sizes: list[int]) -> Tensor:
        """Add the product to a term for all planes, or to one for each."""
        # Product and sum apart: a compiler joins the sum with what follows, and addmm would first
        # copy the term.
        if self.weight.shape[0] == 1:
            return (x @ self.weight[0]).add_(terms[0])
        parts = zip(terms, torch.split(x, sizes), self.weight.unbind(), strict=True)
        return torch.cat([(part @ weight).add_(term) for term, part, weight in parts])


class PlaneAffine(PlaneProduct):
    """The same with a bias."""

    bias: Tensor

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        super().__init__(weights)
        self.register_buffer("bias", torch.stack(list(biases)))

    def forward(self, x: Tensor, sizes: list[int]) -> Tensor:  # type: ignore[override]
        """Map ``[H, inputs]`` to ``[H, outputs]``; ``sizes`` are the numbers of hits per plane."""
        return self.add(self.bias.unbind(), x, sizes)


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

        def blocks(pattern: str, target: int) -> list[Block]:
            return [Block.read(state, pattern.format(plane=plane), target) for plane in planes]

        core = "core_net.{}.convs.<{}>"
        plane = blocks(core.format("plane_net", "{plane}___plane___{plane}"), planar)
        up = blocks(core.format("plane_to_nexus", "{plane}___nexus___sp"), nexus)
        down = blocks(core.format("nexus_to_plane", "sp___nexus___{plane}"), planar)
        to_event = Block.read(
            state, core.format("nexus_to_interaction", "sp___in___evt"), spec.interaction_features
        )
        from_event = Block.read(
            state, core.format("interaction_to_nexus", "evt___owns___sp"), merged
        )

        names = ["encoder.planar_net"] if shared else [f"encoder.lins.{p}" for p in PLANES]
        self.encode = PlaneAffine(
            [state[f"{name}.weight"].t() for name in names],
            [state[f"{name}.bias"] for name in names],
        )
        self.encode_position = (
            Affine([state["encoder.nexus_net.weight"].t()], [state["encoder.nexus_net.bias"]])
            if shared
            else None
        )

        # Hit -> hit: the hidden layer's own part, the gate's part as target, and as source.
        self.plane_own = PlaneAffine(
            [torch.cat((b.hidden_target, b.gate_target, b.gate_source), 1) for b in plane],
            [torch.cat((b.hidden_bias, b.gate_bias, torch.zeros_like(b.gate_bias))) for b in plane],
        )
        self.plane_aggregate = PlaneProduct([b.hidden_aggregate for b in plane])
        self.plane_output = _output(plane)

        # What the nexus blocks need of a hit: the part of the block that leads down to it, and
        # the gate's part as source of the block that leads up.
        self.nexus_own = PlaneAffine(
            [
                torch.cat((d.hidden_target, d.gate_target, u.gate_source), 1)
                for d, u in zip(down, up, strict=True)
            ],
            [
                torch.cat((d.hidden_bias, d.gate_bias, torch.zeros_like(u.gate_bias)))
                for d, u in zip(down, up, strict=True)
            ],
        )
        self.down_aggregate = PlaneProduct([b.hidden_aggregate for b in down])
        self.down_output = _output(down)

        # Of a spacepoint, once per plane: the same for the upward block, and the downward gate.
        each = list(range(len(PLANES))) if not shared else [0] * len(PLANES)
        self.up_own = Affine([up[i].hidden_target for i in each], [up[i].hidden_bias for i in each])
        self.up_gate = Affine([up[i].gate_target for i in each], [up[i].gate_bias for i in each])
        self.up_aggregate = PlaneProduct([b.hidden_aggregate for b in up])
        self.up_output = _output(up)
        self.register_buffer("down_gate", torch.cat([down[i].gate_source for i in each], 1))

        # Spacepoint <-> event: own part and gate as target downwards, gate as source upwards.
        self.merged_own = Affine(
            [from_event.hidden_target, from_event.gate_target, to_event.gate_source],
            [from_event.hidden_bias, from_event.gate_bias, torch.zeros_like(to_event.gate_bias)],
        )
        self.event_own = Affine(
            [to_event.hidden_target, to_event.gate_target],
            [to_event.hidden_bias, to_event.gate_bias],
        )
        self.register_buffer("event_aggregate", to_event.hidden_aggregate.contiguous())
        self.event_output = Affine([to_event.output], [to_event.output_bias])
        self.register_buffer(
            "owned", torch.cat((from_event.hidden_aggregate, from_event.gate_source), 1)
        )
        self.merged_output = Affine([from_event.output], [from_event.output_bias])

        self.decode_hits = _hit_decoder(spec, state)
        self.decode_event = _linear(state, "event_decoder.net") if "event" in spec.heads else None
        self.decode_vertex = (
            _linear(state, "vertex_decoder.net") if "vertex" in spec.heads else None
        )

    down_gate: Tensor
    event_aggregate: Tensor
    owned: Tensor

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

    def iterate(
        self, state: State3, batch: GraphBatch, aggregate: Aggregate = gated_softmax_aggregate
    ) -> State3:
        """Return the features after one more iteration.

        Args:
            state: The features before it.
            batch: The graph.
            aggregate: The softmax aggregation to use.
        """
        sizes = _sizes(batch)
        hits = self._plane_to_plane(state.hits, sizes, batch, aggregate)
        own = self.nexus_own(hits, sizes)
        merged = self._plane_to_nexus(hits, own[:, -1], state.nexus, batch, aggregate)
        nexus, event = self._through_event(merged, state.event, batch, aggregate)
        return State3(self._nexus_to_plane(nexus, own, sizes, batch, aggregate), nexus, event)

    def _plane_to_plane(
        self, hits: Tensor, sizes: list[int], batch: GraphBatch, aggregate: Aggregate
    ) -> Tensor:
        width = self.spec.planar_features
        own = self.plane_own(hits, sizes)
        gate = torch.sigmoid(
            own[:, width].index_select(0, batch.edge_target)
            + own[:, width + 1].index_select(0, batch.edge_source)
        )
        received = aggregate(hits, batch.edge_source, gate, batch.edge_target, batch.edge_offsets)
        hidden = mish(self.plane_aggregate(received, sizes, plus=own[:, :width]))
        return mish(self.plane_output(hidden, sizes))

    def _plane_to_nexus(
        self,
        hits: Tensor,
        source_gate: Tensor,
        nexus: Tensor,
        batch: GraphBatch,
        aggregate: Aggregate,
    ) -> Tensor:
        """Return the planes' contributions to each spacepoint, summed or side by side."""
        spacepoints, width = nexus.shape
        # By nexus segment: plane after plane, as the planes' weights are applied.
        own = self.up_own(nexus).view(spacepoints, len(PLANES), width).transpose(0, 1)
        target_gate = self.up_gate(nexus).t().reshape(-1)
        gate = torch.sigmoid(
            target_gate.index_select(0, batch.up_segment)
            + source_gate.index_select(0, batch.up_hit)
        )
        received = aggregate(hits, batch.up_hit, gate, batch.up_segment, batch.up_offsets)
        sizes = [spacepoints] * len(PLANES)
        hidden = mish(self.up_aggregate(received, sizes, plus=own.reshape(-1, width)))
        planes = mish(self.up_output(hidden, sizes)).view(len(PLANES), spacepoints, width)
        if self.spec.variant == "24.7.1":
            return planes.sum(0)
        return planes.transpose(0, 1).reshape(spacepoints, len(PLANES) * width)

    def _through_event(
        self, merged: Tensor, event: Tensor, batch: GraphBatch, aggregate: Aggregate
    ) -> tuple[Tensor, Tensor]:
        """Update the events from their spacepoints, then the spacepoints from their event."""
        nexus_width, event_width = self.spec.nexus_features, self.spec.interaction_features
        of_spacepoint = batch.spacepoint_event
        merged_own = self.merged_own(merged)
        event_own = self.event_own(event)

        gate = torch.sigmoid(
            event_own[:, event_width].index_select(0, of_spacepoint) + merged_own[:, -1]
        )
        received = aggregate(merged, None, gate, of_spacepoint, batch.spacepoint_offsets)
        hidden = mish(event_own[:, :event_width] + received @ self.event_aggregate)
        event = mish(self.event_output(hidden))

        # A spacepoint has exactly one message, whose softmax is 1, so that the hidden layer can
        # be applied before the message is sent.
        owned = (event @ self.owned).index_select(0, of_spacepoint)
        gate = torch.sigmoid(owned[:, nexus_width] + merged_own[:, nexus_width])
        hidden = torch.addcmul(merged_own[:, :nexus_width], owned[:, :nexus_width], gate[:, None])
        return mish(self.merged_output(mish(hidden))), event

    def _nexus_to_plane(
        self,
        nexus: Tensor,
        own: Tensor,
        sizes: list[int],
        batch: GraphBatch,
        aggregate: Aggregate,
    ) -> Tensor:
        width = self.spec.planar_features
        source_gate = (nexus @ self.down_gate).reshape(-1)
        gate = torch.sigmoid(
            own[:, width].index_select(0, batch.down_hit)
            + source_gate.index_select(0, batch.down_slot)
        )
        received = aggregate(nexus, batch.down_spacepoint, gate, batch.down_hit, batch.down_offsets)
        hidden = mish(self.down_aggregate(received, sizes, plus=own[:, :width]))
        return mish(self.down_output(hidden, sizes))

    def decode(self, state: State3, batch: GraphBatch) -> dict[str, Tensor]:
        """Return the outputs by name; `forward` describes them."""
        hits, event, sizes = state.hits, state.event, _sizes(batch)
        probabilities = self.spec.variant == "24.7.1"
        outputs: dict[str, Tensor] = {}
        if self.decode_hits is not None:
            scores = self.decode_hits(hits, sizes)
            classes = self.spec.semantic_classes
            for plane, part in zip(PLANES, torch.split(scores, sizes), strict=True):
                if "semantic" in self.spec.heads:
                    semantic = part[:, :classes]
                    outputs[f"x_semantic_{plane}"] = (
                        semantic.softmax(1) if probabilities else semantic.contiguous()
                    )
                if "filter" in self.spec.heads:
                    outputs[f"x_filter_{plane}"] = torch.sigmoid(part[:, -1])
        if self.decode_event is not None:
            scores = self.decode_event(event)
            outputs["e_evt"] = scores.softmax(1) if probabilities else scores
        if self.decode_vertex is not None:
            outputs["v_evt"] = self.decode_vertex(event)
        return outputs


def _sizes(batch: GraphBatch) -> list[int]:
    """Return the numbers of hits per plane."""
    return [features.shape[0] for features in batch.features]


def _output(blocks: Sequence[Block]) -> PlaneAffine:
    return PlaneAffine([b.output for b in blocks], [b.output_bias for b in blocks])


def _linear(state: State, name: str) -> Affine:
    return Affine([state[f"{name}.weight"].t()], [state[f"{name}.bias"]])


def _hit_decoder(spec: Spec, state: State) -> PlaneAffine | None:
    """Join the semantic and the filter head of each plane; their weights are never shared."""
    patterns = [
        pattern
        for head, pattern in (
            ("semantic", "semantic_decoder.net.{}"),
            ("filter", "filter_decoder.net.{}.0"),
        )
        if head in spec.heads
    ]
    if not patterns:
        return None
    names = [[pattern.format(plane) for pattern in patterns] for plane in PLANES]
    return PlaneAffine(
        [torch.cat([state[f"{name}.weight"] for name in heads]).t() for heads in names],
        [torch.cat([state[f"{name}.bias"] for name in heads]) for heads in names],
    )
