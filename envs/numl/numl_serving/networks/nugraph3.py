"""NuGraph3: message passing between hits, spacepoints and the event.

An iteration is five blocks (``NuGraphBlock`` in nugraph's ``models/nugraph3/core.py``): hit to hit,
hit to spacepoint, spacepoint to event, event to spacepoint, spacepoint to hit. The message of a
block is ``sigmoid(g([x_target, x_source])) x_source``, aggregated by a softmax; the node then gets
``f([aggregate, x_target])``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from numl_formats.card import ModelCard
from numl_serving.networks.batch import Edges, GraphBatch
from numl_serving.networks.heads import Heads
from numl_serving.networks.layers import Gate, PlaneLinear, softmax_aggregate

Weights = Mapping[str, Tensor]
Activation = Callable[[Tensor], Tensor]


class Block(nn.Module):
    """One kind of ``NuGraphBlock``.

    Args:
        weights: The weights by name.
        name: The block's name.
        target_width: Features of a receiving node.
        planes: Whether the weights have a plane dimension.
    """

    def __init__(self, weights: Weights, name: str, target_width: int, *, planes: bool) -> None:
        super().__init__()

        def layer(part: str) -> tuple[Tensor, Tensor]:
            weight, bias = (weights[f"{name}.{part}.{kind}"] for kind in ("weight", "bias"))
            return (weight, bias) if planes else (weight[None], bias[None])

        self.gate = Gate(*layer("gate"), target_width)
        self.hidden = PlaneLinear(*layer("hidden"))
        self.output = PlaneLinear(*layer("output"))

    def forward(
        self,
        target: Tensor,
        source: Tensor,
        edges: Edges,
        target_sizes: Sequence[int] = (),
        source_sizes: Sequence[int] = (),
    ) -> Tensor:
        """Return the new features ``[M, outputs]`` of the receiving nodes.

        Args:
            target: ``[M, T]``, features of the receiving nodes.
            source: ``[R, S]``, features of the sending nodes.
            edges: Which node sends to which.
            target_sizes: Number of receiving nodes of each plane.
            source_sizes: Number of sending nodes of each plane.
        """
        gate = torch.sigmoid(self.gate(target, source, edges, target_sizes, source_sizes))
        messages = source.index_select(0, edges.source) * gate[:, None]
        joined = torch.cat((softmax_aggregate(messages, edges), target), dim=1)
        hidden = functional.mish(self.hidden(joined, target_sizes))
        return functional.mish(self.output(hidden, target_sizes))


class Embedded(nn.Module):
    """One vector of the instance embedding: ``beta`` or ``coordinates``.

    Args:
        weights: The weights by name.
        name: The vector's name.
        start: What follows the layer that makes it of the input features.
        update: What follows the last layer of an update, if anything does.
    """

    def __init__(
        self, weights: Weights, name: str, start: Activation, update: Activation | None
    ) -> None:
        super().__init__()

        def layer(part: str) -> PlaneLinear:
            return PlaneLinear(*(weights[f"{name}.{part}.{k}"][None] for k in ("weight", "bias")))

        self.start, self.decoder = layer("start"), layer("decoder")
        inner = ("hidden", "middle") if f"{name}.middle.weight" in weights else ("hidden",)
        self.inner = nn.ModuleList(map(layer, inner))
        self.output = layer("output")
        self._start, self._update = start, update

    def begin(self, features: Tensor) -> Tensor:
        """Return the vectors ``[H, W]`` of hits with the input features ``[H, F]``."""
        return self._start(self.start(features, ()))

    def updated(self, own: Tensor, hits: Tensor) -> Tensor:
        """Return the vectors after an iteration that gave the hits new features."""
        joined = torch.cat((own, hits), dim=1)
        for layer in self.inner:
            joined = functional.mish(layer(joined, ()))
        new: Tensor = self.output(joined, ())
        return new if self._update is None else self._update(new)

    def decoded(self, own: Tensor, hits: Tensor) -> Tensor:
        """Return what the head is applied to."""
        return functional.mish(self.decoder(torch.cat((hits, own), dim=1), ()))


class NuGraph3(nn.Module):
    """The network.

    Args:
        card: Its structure.
        weights: Its weights by name.
    """

    def __init__(self, card: ModelCard, weights: Weights) -> None:
        super().__init__()
        self.card = card
        spec = card.network
        merged = spec.nexus_width * (len(card.planes) if spec.nexus == "concat" else 1)
        self.encoder = PlaneLinear(weights["encoder.weight"], weights["encoder.bias"])
        self.nexus_encoder = None
        if spec.nexus_start == "position":
            layer = weights["nexus_encoder.weight"], weights["nexus_encoder.bias"]
            self.nexus_encoder = PlaneLinear(*(each[None] for each in layer))
        self.planar = Block(weights, "planar", spec.hit_width, planes=True)
        self.up = Block(weights, "up", spec.nexus_width, planes=True)
        self.to_event = Block(weights, "to_event", spec.event_width, planes=False)
        self.from_event = Block(weights, "from_event", merged, planes=False)
        self.down = Block(weights, "down", spec.hit_width, planes=True)
        embedded: dict[str, nn.Module] = {}
        if (embedding := spec.embedding) is not None:
            last = functional.mish if embedding.layers == 2 else None
            embedded["instance_beta"] = Embedded(weights, "beta", torch.sigmoid, torch.sigmoid)
            embedded["instance"] = Embedded(weights, "coordinates", functional.mish, last)
        self.embedded = nn.ModuleDict(embedded)
        self.heads = Heads(card, weights)

    def forward(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Return the heads' outputs by name."""
        spec, position, sizes = self.card.network, batch.position, batch.plane_sizes
        spacepoints, planes = position.shape[0], len(sizes)
        segments = (spacepoints,) * planes
        hits = self.encoder(batch.features, sizes)
        if self.nexus_encoder is None:
            nexus = position.new_zeros((spacepoints, spec.nexus_width))
        else:
            nexus = self.nexus_encoder(position, ())
        event = position.new_zeros((batch.to_event.offsets.shape[0] - 1, spec.event_width))
        parts = cast("Mapping[str, Embedded]", dict(self.embedded.items()))
        embedded = {name: each.begin(batch.features) for name, each in parts.items()}
        for _ in range(spec.iterations):
            hits = self.planar(hits, hits, batch.planar, sizes, sizes)
            if spec.nexus == "joint":
                nexus = self.up(nexus, hits, batch.up, (), sizes)
            else:
                apart = self.up(nexus.repeat(planes, 1), hits, batch.up, segments, sizes)
                apart = apart.view(planes, spacepoints, spec.nexus_width)
                nexus = apart.sum(0) if spec.nexus == "sum" else apart.transpose(0, 1).flatten(1)
            event = self.to_event(event, nexus, batch.to_event)
            nexus = self.from_event(nexus, event, batch.from_event)
            hits = self.down(hits, nexus.repeat(planes, 1), batch.down, sizes, segments)
            for name, each in parts.items():
                embedded[name] = each.updated(embedded[name], hits)
        decoded = {n: each.decoded(embedded[n], hits) for n, each in parts.items()}
        outputs: dict[str, Tensor] = self.heads(hits, event, sizes, decoded)
        return outputs
