"""NuGraph's own models (nugraph 24.7.1), built for training on the demo and as its oracle."""

from __future__ import annotations

import warnings
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch_geometric.data import Batch, HeteroData

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # nugraph's imports warn of their own old age
    from nugraph.models.nugraph2 import NuGraph2
    from nugraph.models.nugraph3 import NuGraph3, nugraph3

from .geometry import PLANES
from .graphs import NUGRAPH2_LABELS, NUGRAPH3_LABELS, Labels

# NuGraph3.forward of 24.7.1 asks `hasattr(self, instance_decoder)` without the quotes. Giving
# its module that name lets the published forward run, unchanged otherwise.
nugraph3.instance_decoder = "instance_decoder"

MODELS: Final[dict[str, Labels]] = {"nugraph2": NUGRAPH2_LABELS, "nugraph3": NUGRAPH3_LABELS}
# for tanh the usual 5/3; for mish, found by trial: 1.2 fades, 1.4 explodes
_GAIN: Final = {"nugraph2": 5 / 3, "nugraph3": 1.32}
_EVENT_TEMPERATURE: Final = 3.0  # a loss counts 2 exp(-temperature) at the start; usual: 0
Arrays = dict[str, NDArray[np.float32]]


def build(name: str, learning_rate: float) -> Any:
    """Return a new Lightning module of the named model in its default widths.

    Args:
        name: "nugraph2" or "nugraph3".
        learning_rate: peak of nugraph's one-cycle schedule.
    """
    labels = MODELS[name]
    if name == "nugraph2":
        model = NuGraph2(
            planes=list(PLANES),
            semantic_classes=list(labels.semantic_classes),
            lr=learning_rate,
        )
    else:
        model = NuGraph3(
            planes=list(PLANES),
            semantic_classes=list(labels.semantic_classes),
            event_classes=list(labels.event_classes),
            event_head=True,
            vertex_head=True,
            lr=learning_rate,
        )
    _keep_variance(model, _GAIN[name])
    return model


def _keep_variance(model: NuGraph2 | NuGraph3, gain: float) -> None:
    """Draw start weights that keep the size of the signal through all iterations.

    PyTorch's usual start shrinks it by about three per layer: behind NuGraph3's five iterations
    the hits of an event differ by 1e-5, and it takes hours, not minutes, to find that out.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and "decoder" not in name and "edge_net" not in name:
            nn.init.normal_(layer.weight, std=gain / layer.in_features**0.5)
            nn.init.zeros_(layer.bias)


def learn_quickly(model: NuGraph2 | NuGraph3) -> None:
    """Change two of nugraph's choices that want hours of training, not minutes.

    Its RecallLoss weighs a class by the share of its hits that the batch at hand got wrong.
    Plain cross entropy has, after a minute, about a tenth more of all hits right, and pays for
    it with the rare classes, which it hardly names. Of the events' classes a batch has just two
    examples; without them the hits learn faster. So that loss starts with a small weight,
    through the temperature by which nugraph weighs its losses.
    """
    cross_entropy = nn.CrossEntropyLoss(ignore_index=-1)
    if isinstance(model, NuGraph2):
        model.semantic_decoder.loss_func = cross_entropy
        return
    model.semantic_decoder.loss = cross_entropy
    with torch.no_grad():
        model.event_decoder.temp.fill_(_EVENT_TEMPERATURE)


def start_vertex_at_mean(model: NuGraph3, vertices: torch.Tensor) -> None:
    """Let the vertex head start from the mean vertex instead of from the detector's corner.

    The head is one linear layer whose target spans metres while its inputs are of order one:
    from the usual start, minutes of training would be spent on finding the mean.

    Args:
        model: a NuGraph3 with a vertex head; changed in place.
        vertices: true vertices of the training events in cm, f32[events, 3].
    """
    with torch.no_grad():
        model.vertex_decoder.net.bias.copy_(vertices.mean(dim=0))


@torch.inference_mode()
def answer(model: NuGraph2 | NuGraph3, graph: HeteroData) -> Arrays:
    """Return nugraph's own answer for one prepared graph, by the names of the server's outputs.

    Args:
        model: a model as `build` makes it, in evaluation mode.
        graph: one graph as `graphs.prepare` makes it; it is not changed.
    """
    data = graph.clone()
    if isinstance(model, NuGraph2):
        model.step(data)
    else:
        model(data)
    out: dict[str, torch.Tensor] = {}
    for plane in PLANES:
        out[f"x_semantic_{plane}"] = data[plane].x_semantic
        out[f"x_filter_{plane}"] = data[plane].x_filter
    if isinstance(model, NuGraph3):
        out["e_evt"], out["v_evt"] = data["evt"].e, data["evt"].v
    return {name: value.numpy().astype(np.float32) for name, value in out.items()}


def collate(graphs: list[HeteroData]) -> Batch:
    """Return a batch of copies: nugraph's models write into what they are given."""
    return Batch.from_data_list([graph.clone() for graph in graphs])
