"""NuGraph2 for inference: the arithmetic of nugraph's own model, arranged for speed.

Every hit and every spacepoint has a feature vector per semantic class, and nearly every layer is
a separate linear layer per class (and per plane): here one batched matrix product over the
classes, on tensors whose first dimension is the class. An edge's weights are a softmax over the
classes of ``g([x_target, x_source])`` (nugraph's ``models/nugraph2/plane.py`` and ``nexus.py``),
where ``g`` is linear and therefore split into a part per target and a part per source, computed
once per node. Weighted sums over edges run over the table of ``class x node`` rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

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
Tanh = Callable[[Tensor], Tensor]


class ClassAffine(nn.Module):
    """One affine map per class: ``[C, n, inputs]`` to ``[C, n, outputs]``."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.contiguous())
        self.register_buffer("bias", bias.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        """Apply the maps."""
        return torch.bmm(x, self.weight).add_(self.bias)


class PlaneClassProduct(nn.Module):
    """One matrix per plane and class, on the hits of all planes, plane after plane.

    ``weight`` is ``[3, C, inputs, outputs]``.
    """

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.contiguous())

    def forward(
        self, x: Tensor, sizes: list[int], plus: Tensor, then: Tanh | None = None
    ) -> Tensor:
        """Map ``[C, H, inputs]`` to ``[C, H, outputs]`` and add; ``sizes`` are hits per plane."""
        return self.add(torch.split(plus, sizes, dim=1), x, sizes, then)

    def add(
        self, terms: Sequence[Tensor], x: Tensor, sizes: list[int], then: Tanh | None
    ) -> Tensor:
        """Add the product to a term for each plane, and apply a function to the sum."""
        # Everything plane by plane: a compiler makes one loop of what is between two products.
        parts = zip(terms, torch.split(x, sizes, dim=1), self.weight.unbind(), strict=True)
        sums = [torch.bmm(part, weight).add_(term) for term, part, weight in parts]
        return torch.cat(sums if then is None else [then(each) for each in sums], dim=1)


class PlaneClassAffine(PlaneClassProduct):
    """The same with a bias ``[3, C, 1, outputs]``."""

    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__(weight)
        self.register_buffer("bias", bias.contiguous())

    def forward(  # type: ignore[override]
        self, x: Tensor, sizes: list[int], then: Tanh | None = None
    ) -> Tensor:
        """Map ``[C, H, inputs]`` to ``[C, H, outputs]``; ``sizes`` are the hits per plane."""
        return self.add(self.bias.unbind(), x, sizes, then)


class State2(NamedTuple):
    """What the iterations know of the hits.

    Attributes:
        hits: ``[C, H, planar]``, what they have learned, plane after plane; an iteration changes
            it.
        given_own: ``[C, H, planar + 2]``, what the first layers make of the hits' own features.
        given_sent: ``[C, H, planar]``, their part of what a hit sends.
    """

    hits: Tensor
    given_own: Tensor
    given_sent: Tensor


class ClassEdges(NamedTuple):
    """A graph's edges class by class, as rows of ``class x node`` tables; C classes.

    Attributes:
        edge_rows: ``[C, E]``, source of each planar edge.
        edge_starts: ``[C, H]``, first planar edge of each hit.
        up_rows: ``[C, N]``, hit of each upward edge.
        up_starts: ``[C, 3, S]``, first upward edge of each nexus segment.
        down_rows: ``[C, N]``, spacepoint of each downward edge.
        down_starts: ``[C, H]``, first downward edge of each hit.
        down_share: ``[N]``, a downward edge's share in the mean of its hit.
    """

    edge_rows: Tensor
    edge_starts: Tensor
    up_rows: Tensor
    up_starts: Tensor
    down_rows: Tensor
    down_starts: Tensor
    down_share: Tensor

    @classmethod
    def of(cls, batch: GraphBatch, classes: int) -> ClassEdges:
        """Repeat a graph's edges for each class."""
        hits, edges = batch.edge_offsets.shape[0] - 1, batch.edge_source.shape[0]
        spacepoints, nexus_edges = batch.spacepoint_event.shape[0], batch.up_hit.shape[0]
        each = torch.arange(classes, device=batch.edge_source.device)[:, None]
        shares = 1.0 / batch.down_offsets.diff().to(batch.features[0].dtype)
        return cls(
            edge_rows=each * hits + batch.edge_source,
            edge_starts=each * edges + batch.edge_offsets[:-1],
            up_rows=each * hits + batch.up_hit,
            up_starts=(each * nexus_edges + batch.up_offsets[:-1]).view(
                classes, len(PLANES), spacepoints
            ),
            down_rows=each * spacepoints + batch.down_spacepoint,
            down_starts=each * nexus_edges + batch.down_offsets[:-1],
            down_share=shares.index_select(0, batch.down_hit),
        )


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
        joined = planar + IN_FEATURES

        def layer(name: str) -> tuple[Tensor, Tensor]:
            """Stack the weights ``[C, inputs, outputs]`` and biases ``[C, 1, outputs]``."""
            names = [f"{name}.net.{index}" for index in range(spec.semantic_classes)]
            weight = torch.stack([state[f"{each}.weight"].t() for each in names])
            return weight, torch.stack([state[f"{each}.bias"][None] for each in names])

        def plane_layer(pattern: str) -> tuple[Tensor, Tensor]:
            weights, biases = zip(*(layer(pattern.format(p)) for p in PLANES), strict=True)
            return torch.stack(weights), torch.stack(biases)

        self.encode = PlaneClassAffine(*plane_layer("encoder.net.{}.0"))

        # Hit -> hit, of the learned and of the given features: the hidden layer's own part with
        # the gate's parts as target and as source, and the hidden layer's part for the aggregate.
        gate, gate_bias = plane_layer("plane_net.net.{}.edge_net.0")
        hidden, hidden_bias = plane_layer("plane_net.net.{}.node_net.0")
        own = torch.cat((hidden[:, :, :joined], gate[:, :, :joined], gate[:, :, joined:]), 3)
        sent = hidden[:, :, joined:]
        self.plane_own = PlaneClassProduct(own[:, :, :planar])
        self.plane_sent = PlaneClassProduct(sent[:, :, :planar])
        self.given_own = PlaneClassAffine(
            own[:, :, planar:],
            torch.cat((hidden_bias, gate_bias, torch.zeros_like(gate_bias)), 3),
        )
        self.given_sent = PlaneClassAffine(sent[:, :, planar:], torch.zeros_like(hidden_bias))
        self.plane_output = PlaneClassAffine(*plane_layer("plane_net.net.{}.node_net.2"))

        # Hit -> spacepoint: the hidden layer's part of each plane, on the hits. A spacepoint sums
        # over hits, and what it sums is then narrower.
        weight, bias = layer("nexus_net.nexus_net.0")
        up = weight.view(len(weight), len(PLANES), planar, -1).transpose(0, 1)
        self.register_buffer("nexus_bias", bias)
        self.nexus_output = ClassAffine(*layer("nexus_net.nexus_net.2"))

        # Spacepoint -> hit: of the hit its own part and the gate's, of the spacepoint the gate's.
        # What a hit sends to its spacepoints comes of the same product.
        gate, gate_bias = plane_layer("nexus_net.nexus_down.{}.edge_net.0")
        hidden, hidden_bias = plane_layer("nexus_net.nexus_down.{}.node_net.0")
        self.down_own = PlaneClassAffine(
            torch.cat((hidden[:, :, :planar], gate[:, :, :planar], up), 3),
            torch.cat((hidden_bias, gate_bias, torch.zeros_like(up[:, :, :1])), 3),
        )
        self.register_buffer("down_gate", torch.cat(gate[:, :, planar:].unbind(), 2).contiguous())
        self.down_aggregate = PlaneClassProduct(hidden[:, :, planar:])
        self.down_output = PlaneClassAffine(*plane_layer("nexus_net.nexus_down.{}.node_net.2"))

        self.decode_semantic = (
            PlaneClassAffine(*plane_layer("semantic_decoder.net.{}"))
            if "semantic" in spec.heads
            else None
        )
        self.decode_filter = "filter" in spec.heads
        if self.decode_filter:
            names = [f"filter_decoder.net.{plane}.0" for plane in PLANES]
            weight = torch.stack([state[f"{name}.weight"] for name in names])
            self.register_buffer("filter_weight", weight.view(3, spec.semantic_classes, planar, 1))
            self.register_buffer("filter_bias", torch.stack([state[f"{n}.bias"] for n in names]))

    nexus_bias: Tensor
    down_gate: Tensor
    filter_weight: Tensor
    filter_bias: Tensor

    def forward(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Answer a batch.

        Returns:
            By output name: ``x_semantic_{plane}`` ``[h, classes]`` (raw scores) and
            ``x_filter_{plane}`` ``[h]``, as far as the heads are there.
        """
        state, edges = self.start(batch), ClassEdges.of(batch, self.spec.semantic_classes)
        for _ in range(self.iterations):
            state = self.iterate(state, batch, edges)
        return self.decode(state, batch)

    def start(self, batch: GraphBatch) -> State2:
        """Return the features of the hits before the first iteration."""
        sizes = _sizes(batch)
        features = torch.cat(batch.features).expand(self.spec.semantic_classes, -1, -1)
        return State2(
            self.encode(features, sizes, torch.tanh),
            self.given_own(features, sizes),
            self.given_sent(features, sizes),
        )

    def iterate(
        self,
        state: State2,
        batch: GraphBatch,
        edges: ClassEdges,
        tanh: Tanh = torch.tanh,
    ) -> State2:
        """Return the features after one more iteration.

        Args:
            state: The features before it.
            batch: The graph.
            edges: The graph's edges, class by class.
            tanh: The hyperbolic tangent to use.
        """
        sizes = _sizes(batch)
        classes, planar = self.spec.semantic_classes, self.spec.planar_features
        own = self.plane_own(state.hits, sizes, state.given_own)
        sent = self.plane_sent(state.hits, sizes, state.given_sent)
        weights = _class_softmax(
            own[:, :, planar].index_select(1, batch.edge_target),
            own[:, :, planar + 1].index_select(1, batch.edge_source),
        )
        aggregate = segment_weighted_sum(
            sent.flatten(0, 1),
            edges.edge_rows.view(-1),
            weights.flatten(),
            closed_offsets(edges.edge_starts, edges.edge_rows.numel()),
        )
        hidden = tanh(own[:, :, :planar] + aggregate.view_as(state.hits))
        hits = self.plane_output(hidden, sizes, tanh)

        own = self.down_own(hits, sizes)
        planes = segment_sum(
            own[:, :, planar + 1 :].flatten(0, 1),
            closed_offsets(edges.up_starts, edges.up_rows.numel()),
            edges.up_rows.view(-1),
        )
        planes = planes.view(classes, len(PLANES), -1, self.spec.nexus_features)
        nexus = tanh(self.nexus_output(tanh(planes.sum(1) + self.nexus_bias)))

        slot_gate = torch.bmm(nexus, self.down_gate).flatten(1)
        weights = _class_softmax(
            own[:, :, planar].index_select(1, batch.down_hit),
            slot_gate.index_select(1, batch.down_slot),
        )
        aggregate = segment_weighted_sum(
            nexus.flatten(0, 1),
            edges.down_rows.view(-1),
            (weights * edges.down_share).flatten(),
            closed_offsets(edges.down_starts, edges.down_rows.numel()),
        ).view(classes, -1, self.spec.nexus_features)
        hidden = self.down_aggregate(aggregate, sizes, own[:, :, :planar], tanh)
        return state._replace(hits=self.down_output(hidden, sizes, tanh))

    def decode(self, state: State2, batch: GraphBatch) -> dict[str, Tensor]:
        """Return the outputs by name; `forward` describes them."""
        return self._decode(state.hits, _sizes(batch))

    def _decode(self, x: Tensor, sizes: list[int]) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = {}
        if self.decode_semantic is not None:
            scores = self.decode_semantic(x, sizes)[:, :, 0].t()
            for plane, part in zip(PLANES, torch.split(scores, sizes), strict=True):
                outputs[f"x_semantic_{plane}"] = part.contiguous()
        if self.decode_filter:
            parts = zip(
                PLANES,
                torch.split(x, sizes, dim=1),
                self.filter_weight,
                self.filter_bias,
                strict=True,
            )
            for plane, part, weight, bias in parts:
                score = torch.bmm(part, weight).sum(0)[:, 0] + bias
                outputs[f"x_filter_{plane}"] = torch.sigmoid(score)
        return outputs


def _class_softmax(target: Tensor, source: Tensor) -> Tensor:
    """Return the weights ``[C, E]`` of the edges: over the classes they sum to 1."""
    return torch.softmax(target + source, dim=0)


def _sizes(batch: GraphBatch) -> list[int]:
    """Return the numbers of hits per plane."""
    return [features.shape[0] for features in batch.features]
