"""Run the networks on events, as arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numl_serving.event import Event
from numl_serving.graph import build_graph
from numl_serving.networks import build_network, collate
from numpy.typing import NDArray

from numl_formats.card import ModelCard


class Network:
    """A network with its card.

    Args:
        card: The card.
        weights: Its weights.
        dtype: What it computes in.
    """

    def __init__(
        self,
        card: ModelCard,
        weights: Mapping[str, NDArray[np.float32]],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.card, self.dtype = card, dtype
        self.module = build_network(card, weights).to(dtype)

    def answer(self, events: Sequence[Event]) -> dict[str, NDArray[Any]]:
        """Answer a batch of events; returns arrays by output name."""
        batch = collate([build_graph(event, self.card) for event in events], self.card)
        with torch.inference_mode():
            outputs = self.module(batch.to(self.dtype))
        return {name: tensor.numpy() for name, tensor in outputs.items()}
