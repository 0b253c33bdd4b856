"""NuGraph2: message passing between hits, and over spacepoints, with features for every class.

Every hit and every spacepoint has a feature vector per semantic class, and every layer is one per
class: tensors have the class as their first dimension. An edge's weights are a softmax over the
classes of ``g([x_target, x_source])`` (nugraph's ``models/nugraph2/plane.py`` and ``nexus.py``);
the node then gets ``f([x_target, sum])`` of its weighted messages' sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from numl_formats.card import ModelCard
from numl_serving.networks.batch import Edges, GraphBatch
from numl_serving.networks.heads import Heads
from numl_serving.networks.layers import Gate, PlaneLinear, class_sum

Weights = Mapping[str, Tensor]


class ClassBlock(nn.Module):
    """What one kind of edge does to the hits.

    Args:
        weights: The weights by name.
        name: The block's name.
        target_width: Features of a receiving hit.
    """

    def __init__(self, weights: Weights, name: str, target_width: int) -> None:
        super().__init__()
        self.gate = Gate(*_layer(weights, f"{name}.gate"), target_width)
        self.hidden = PlaneLinear(*_layer(weights, f"{name}.hidden"))
        self.output = PlaneLinear(*_layer(weights, f"{name}.output"))

    def forward(
        self,
        target: Tensor,
        source: Tensor,
        edges: Edges,
        sizes: Sequence[int],
        source_sizes: Sequence[int],
        *,
        mean: bool = False,
    ) -> Tensor:
        """Return the new features ``[C, H, outputs]`` of the hits.

        Args:
            target: ``[C, H, T]``, features of the hits.
            source: ``[C, R, S]``, features of the sending nodes.
            edges: Which node sends to which hit.
            sizes: Number of hits of each plane.
            source_sizes: Number of sending nodes of each plane.
            mean: Whether a hit takes the mean of its messages, not their sum.
        """
        weights = torch.softmax(self.gate(target, source, edges, sizes, source_sizes), dim=0)
        received = class_sum(source, edges, weights)
        if mean:
            received = received / edges.offsets.diff().clamp(min=1)[:, None]
        hidden = torch.tanh(self.hidden(torch.cat((target, received), dim=2), sizes))
        return torch.tanh(self.output(hidden, sizes))


class NuGraph2(nn.Module):
    """The network.

    Args:
        card: Its structure.
        weights: Its weights by name.
    """

    def __init__(self, card: ModelCard, weights: Weights) -> None:
        super().__init__()
        self.card = card
        width = card.network.hit_width
        self.encoder = PlaneLinear(*_layer(weights, "encoder"))
        self.planar = ClassBlock(weights, "planar", width + len(card.hit_features))
        self.nexus_hidden = PlaneLinear(*(w[None] for w in _layer(weights, "nexus.hidden")))
        self.nexus_output = PlaneLinear(*(w[None] for w in _layer(weights, "nexus.output")))
        self.down = ClassBlock(weights, "down", width)
        self.heads = Heads(card, weights)

    def forward(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Return the heads' outputs by name."""
        spec, sizes = self.card.network, batch.plane_sizes
        spacepoints, planes = batch.position.shape[0], len(sizes)
        # All classes of a hit are given the same features, before every iteration again.
        given = batch.features.expand(spec.classes, -1, -1)
        ones = given.new_ones((spec.classes, batch.up.source.shape[0]))
        hits = torch.tanh(self.encoder(given, sizes))
        for _ in range(spec.iterations):
            joined = torch.cat((hits, given), dim=2)
            hits = self.planar(joined, joined, batch.planar, sizes, sizes)
            # A spacepoint has the sums over its hits of each plane side by side.
            sums = class_sum(hits, batch.up, ones)
            sums = sums.view(spec.classes, planes, spacepoints, spec.hit_width)
            nexus = torch.tanh(self.nexus_hidden(sums.transpose(1, 2).flatten(2), ()))
            nexus = torch.tanh(self.nexus_output(nexus, ()))
            nexus = nexus.repeat(1, planes, 1)
            segments = (spacepoints,) * planes
            hits = self.down(hits, nexus, batch.down, sizes, segments, mean=True)
        features = hits.transpose(0, 1).flatten(1)
        outputs: dict[str, Tensor] = self.heads(features, features[:0], sizes)
        return outputs


def _layer(weights: Weights, name: str) -> tuple[Tensor, Tensor]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]
