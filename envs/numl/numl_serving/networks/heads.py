"""The heads: a linear layer on the features of hits or events, then what the card says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from numl_formats.card import Head, ModelCard
from numl_serving.networks.layers import PlaneLinear


class Heads(nn.Module):
    """All heads of a network.

    Args:
        card: The model.
        weights: Its weights by name.
    """

    def __init__(self, card: ModelCard, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.card = card
        self.layers = nn.ModuleList()
        for head in card.heads:
            layer = weights[f"heads.{head.name}.weight"], weights[f"heads.{head.name}.bias"]
            # The event is one node for all planes.
            self.layers.append(
                PlaneLinear(*(each[None] if head.node == "event" else each for each in layer))
            )

    def forward(
        self,
        hits: Tensor,
        event: Tensor,
        sizes: Sequence[int],
        decoded: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return the heads' tensors by name.

        Args:
            hits: ``[H, features]``.
            event: ``[B, features]``.
            sizes: Number of hits of each plane.
            decoded: ``[H, features]`` by head, for those with features of their own.
        """
        own = decoded or {}
        outputs: dict[str, Tensor] = {}
        for head, layer in zip(self.card.heads, self.layers, strict=True):
            if head.node == "event":
                outputs[f"{head.output}_evt"] = _activated(layer(event, ()), head)
            else:
                values = torch.split(
                    _activated(layer(own.get(head.name, hits), sizes), head), list(sizes)
                )
                names = (f"{head.output}_{plane}" for plane in self.card.planes)
                outputs.update(zip(names, values, strict=True))
        return outputs


def _activated(values: Tensor, head: Head) -> Tensor:
    if head.activation == "softmax":
        values = values.softmax(1)
    elif head.activation == "sigmoid":
        values = values.sigmoid()
    return values[:, 0] if head.is_scalar and head.node == "hit" else values
