"""NuGraph2 for inference: the arithmetic of nugraph's own model, arranged for speed.

Every hit and every spacepoint has a feature vector per semantic class, and nearly every layer is
a separate linear layer per class (and per plane): here one batched matrix product over the
classes, on tensors whose first dimension is the class. An edge's weights are a softmax over the
classes of ``g([x_target, x_source])`` (nugraph's ``models/nugraph2/plane.py`` and ``nexus.py``),
where ``g`` is linear and therefore split into a part per target and a part per source, computed
once per node. Weighted sums over edges run over the table of ``class x node`` rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from numl_serving.event import PLANES
from numl_serving.networks.common import GraphBatch, segment_sum, segment_weighted_sum
from numl_serving.networks.variants import IN_FEATURES, Spec

State = Mapping[str, Tensor]


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
        return torch.baddbmm(self.bias, x, self.weight)


class PlaneClassProduct(nn.Module):
    """One matrix per plane and class, on the hits of all planes, plane after plane.

    ``weight`` is ``[3, C, inputs, outputs]``.
    """

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.contiguous())

    def forward(self, x: Tensor, sizes: list[int], plus: Tensor) -> Tensor:
        """Map ``[C, H, inputs]`` to ``[C, H, outputs]`` and add; ``sizes`` are hits per plane."""
        return self.add(torch.split(plus, sizes, dim=1), x, sizes)

    def add(self, terms: Sequence[Tensor], x: Tensor, sizes: list[int]) -> Tensor:
        """Add the product to a term for each plane."""
        parts = zip(terms, torch.split(x, sizes, dim=1), self.weight.unbind(), strict=True)
        return torch.cat([torch.baddbmm(term, part, w) for term, part, w in parts], dim=1)


class PlaneClassAffine(PlaneClassProduct):
    """The same with a bias ``[3, C, 1, outputs]``."""

    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__(weight)
        self.register_buffer("bias", bias.contiguous())

    def forward(self, x: Tensor, sizes: list[int]) -> Tensor:  # type: ignore[override]
        """Map ``[C, H, inputs]`` to ``[C, H, outputs]``; ``sizes`` are the hits per plane."""
        return self.add(self.bias.unbind(), x, sizes)


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

        # Hit -> hit: the hidden layer's own part, the gate's part as target, and as source.
        gate, gate_bias = plane_layer("plane_net.net.{}.edge_net.0")
        hidden, hidden_bias = plane_layer("plane_net.net.{}.node_net.0")
        self.plane_own = PlaneClassAffine(
            torch.cat((hidden[:, :, :joined], gate[:, :, :joined], gate[:, :, joined:]), 3),
            torch.cat((hidden_bias, gate_bias, torch.zeros_like(gate_bias)), 3),
        )
        self.plane_aggregate = PlaneClassProduct(hidden[:, :, joined:])
        self.plane_output = PlaneClassAffine(*plane_layer("plane_net.net.{}.node_net.2"))

        self.nexus_hidden = ClassAffine(*layer("nexus_net.nexus_net.0"))
        self.nexus_output = ClassAffine(*layer("nexus_net.nexus_net.2"))

        # Spacepoint -> hit: of the hit its own part and the gate's, of the spacepoint the gate's.
        gate, gate_bias = plane_layer("nexus_net.nexus_down.{}.edge_net.0")
        hidden, hidden_bias = plane_layer("nexus_net.nexus_down.{}.node_net.0")
        self.down_own = PlaneClassAffine(
            torch.cat((hidden[:, :, :planar], gate[:, :, :planar]), 3),
            torch.cat((hidden_bias, gate_bias), 3),
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

    down_gate: Tensor
    filter_weight: Tensor
    filter_bias: Tensor

    def forward(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Answer a batch.

        Returns:
            By output name: ``x_semantic_{plane}`` ``[h, classes]`` (raw scores) and
            ``x_filter_{plane}`` ``[h]``, as far as the heads are there.
        """
        sizes = [features.shape[0] for features in batch.features]
        classes, planar = self.spec.semantic_classes, self.spec.planar_features
        features = torch.cat(batch.features).expand(classes, -1, -1)
        # In a table of class x node rows, an edge has one row per class.
        hits, edges = features.shape[1], batch.edge_source.shape[0]
        spacepoints, nexus_edges = batch.spacepoint_event.shape[0], batch.up_hit.shape[0]
        edge_rows = _rows(batch.edge_source, hits, classes)
        edge_offsets = _class_offsets(batch.edge_offsets, edges, classes)
        up_rows = _rows(batch.up_hit, hits, classes)
        up_offsets = _class_offsets(batch.up_offsets, nexus_edges, classes)
        down_rows = _rows(batch.down_spacepoint, spacepoints, classes)
        down_offsets = _class_offsets(batch.down_offsets, nexus_edges, classes)
        # The downward aggregation is a mean; a hit without spacepoints gets zero.
        down_share = 1.0 / batch.down_offsets.diff().clamp(min=1).to(features.dtype)
        down_share = down_share.index_select(0, batch.down_hit)

        x = torch.tanh(self.encode(features, sizes))
        for _ in range(self.iterations):
            x = torch.cat((x, features), dim=2)
            own = self.plane_own(x, sizes)
            weights = _class_softmax(
                own[:, :, -2].index_select(1, batch.edge_target),
                own[:, :, -1].index_select(1, batch.edge_source),
            )
            aggregate = segment_weighted_sum(
                x.flatten(0, 1), edge_rows, weights.flatten(), edge_offsets
            ).view_as(x)
            hidden = torch.tanh(self.plane_aggregate(aggregate, sizes, plus=own[:, :, :-2]))
            x = torch.tanh(self.plane_output(hidden, sizes))

            planes = segment_sum(x.flatten(0, 1).index_select(0, up_rows), up_offsets)
            planes = planes.view(classes, len(PLANES), spacepoints, planar)
            joined = planes.transpose(1, 2).flatten(2)
            nexus = torch.tanh(self.nexus_output(torch.tanh(self.nexus_hidden(joined))))

            own = self.down_own(x, sizes)
            slot_gate = torch.bmm(nexus, self.down_gate).flatten(1)
            weights = _class_softmax(
                own[:, :, -1].index_select(1, batch.down_hit),
                slot_gate.index_select(1, batch.down_slot),
            )
            aggregate = segment_weighted_sum(
                nexus.flatten(0, 1),
                down_rows,
                (weights * down_share).flatten(),
                down_offsets,
            ).view(classes, hits, self.spec.nexus_features)
            hidden = torch.tanh(self.down_aggregate(aggregate, sizes, plus=own[:, :, :-1]))
            x = torch.tanh(self.down_output(hidden, sizes))
        return self._decode(x, sizes)

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


def _rows(nodes: Tensor, table: int, classes: int) -> Tensor:
    """Return, class by class, the rows of edges' nodes in a table of class x node rows."""
    first = torch.arange(classes, device=nodes.device)[:, None] * table
    return (first + nodes).view(-1)


def _class_offsets(offsets: Tensor, edges: int, classes: int) -> Tensor:
    """Return the segment offsets of a list of edges repeated class by class."""
    first = torch.arange(classes, device=offsets.device)[:, None] * edges
    return torch.cat(((first + offsets[:-1]).view(-1), offsets.new_full((1,), classes * edges)))
