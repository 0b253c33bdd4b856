"""Make the network under test from a reference model, and run it on graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numl_serving.graph import EventGraph
from numl_serving.networks.common import collate
from numl_serving.networks.nugraph2 import NuGraph2
from numl_serving.networks.nugraph3 import NuGraph3
from numl_serving.networks.variants import canonical_name, is_served, recognise
from numpy.typing import NDArray
from oracle import NORMALISATION
from torch import nn


def rewritten(model: nn.Module, kind: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return the network with the weights of a reference model."""
    architecture = "nugraph2" if kind == "nugraph2" else "nugraph3"
    state = {
        canonical_name(name): tensor.float()
        for name, tensor in model.state_dict().items()
        if is_served(name)
    }
    spec = recognise({name: tuple(t.shape) for name, t in state.items()}, architecture)
    network = NuGraph2 if architecture == "nugraph2" else NuGraph3
    return network(spec, state, 5).to(dtype)


def run(
    network: nn.Module, graphs: Sequence[EventGraph], dtype: torch.dtype = torch.float32
) -> dict[str, NDArray[Any]]:
    """Run a network on a batch; returns arrays by output name."""
    with torch.inference_mode():
        outputs = network(collate(graphs, NORMALISATION).to(dtype))
    return {name: tensor.numpy() for name, tensor in outputs.items()}
