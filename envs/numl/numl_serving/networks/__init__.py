"""NuGraph's networks in plain PyTorch, for inference: what runs on a GPU, and a reference on CPUs.

Structure and widths come from the model card, weights under the names of
`numl_serving.shapes.weight_shapes`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from numl_formats.card import ModelCard
from numl_serving.networks.batch import GraphBatch, collate
from numl_serving.networks.nugraph2 import NuGraph2
from numl_serving.networks.nugraph3 import NuGraph3
from numl_serving.shapes import check_weights

__all__ = ["GraphBatch", "build_network", "collate"]


def build_network(card: ModelCard, weights: Mapping[str, NDArray[np.float32]]) -> nn.Module:
    """Make the network that a card describes.

    Args:
        card: The card.
        weights: The weights by name; they are copied.

    Returns:
        A module in float32 on the CPU: it takes a `GraphBatch` and gives every head's tensors by
        the names of ``card.outputs``. A hit tensor has the hits of its plane, event after event;
        one of the event has a row for each event.

    Raises:
        ModelFilesError: The weights do not match the card.
    """
    check_weights(card, {name: array.shape for name, array in weights.items()})
    tensors = {name: torch.tensor(array) for name, array in weights.items()}
    network = {"nugraph3": NuGraph3, "nugraph2": NuGraph2}[card.network.kind]
    return network(card, tensors).eval()
