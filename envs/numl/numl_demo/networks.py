"""NuGraph's own models, of nugraph 25.4.0, built for training on the demo.

Before this module is imported, `nugraph25.lay_beside` says where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils.parametrize import (
    is_parametrized,
    register_parametrization,
    remove_parametrizations,
)
from torch_geometric.data import Batch, HeteroData

from .geometry import PLANES
from .graphs import COLUMNS, NUGRAPH2_LABELS, NUGRAPH3_LABELS, Labels
from .oracle import Network, NuGraph2, NuGraph3, transformed

MODELS: Final[dict[str, Labels]] = {"nugraph2": NUGRAPH2_LABELS, "nugraph3": NUGRAPH3_LABELS}
# the position, the columns and, where all planes share their weights, the plane
_FEATURES: Final = {"nugraph2": 2 + len(COLUMNS), "nugraph3": 2 + len(COLUMNS) + 1}
# for tanh the usual 5/3; for mish, found by trial: 1.2 fades, 1.4 explodes
_GAIN: Final = {"nugraph2": 5 / 3, "nugraph3": 1.32}
_EVENT_TEMPERATURE: Final = 2.0  # a loss counts 2 exp(-temperature) at the start; usual: 0


def build(name: str, learning_rate: float) -> Any:
    """Return a new Lightning module of the named model in its default widths.

    Args:
        name: "nugraph2" or "nugraph3".
        learning_rate: peak of nugraph's one-cycle schedule.
    """
    labels = MODELS[name]
    sizes: dict[str, Any] = {
        "in_features": _FEATURES[name],
        "planes": list(PLANES),
        "semantic_classes": list(labels.semantic_classes),
        "lr": learning_rate,
    }
    if name == "nugraph2":
        model = NuGraph2(**sizes)
    else:
        classes = list(labels.event_classes)
        model = NuGraph3(**sizes, event_classes=classes, event_head=True, vertex_head=True)
    _keep_variance(model, _GAIN[name])
    return model


def prepare(name: str, graphs: Iterable[HeteroData]) -> list[HeteroData]:
    """Return the graphs as nugraph's data module feeds them to a model; modifies them."""
    kind = NuGraph2 if name == "nugraph2" else NuGraph3
    prepared = []
    for data in graphs:
        # The features of the first generation: pynuml 25.4 adds plane, wire and time.
        data["hit"].x = data["hit"].x[:, : _FEATURES[name] - 2]
        del data["metadata"], data["hit", "delaunay", "hit"]  # no model reads these edges
        for store in data.node_stores:
            if "x" not in store:
                store.x = torch.empty(store.num_nodes, 0)
        prepared.append(transformed(kind, data, PLANES))
    return prepared


def _keep_variance(model: Network, gain: float) -> None:
    """Draw start weights that keep the size of the signal through all iterations.

    PyTorch's usual start shrinks it by about three per layer: behind NuGraph3's five iterations
    the hits of an event differ by 1e-5, and it takes hours, not minutes, to find that out.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and "decoder" not in name and "edge_net" not in name:
            nn.init.normal_(layer.weight, std=gain / layer.in_features**0.5)
            nn.init.zeros_(layer.bias)


def learn_quickly(model: Network, graphs: Sequence[HeteroData]) -> None:
    """Change what of nugraph's wants hours of training, not minutes.

    - Its RecallLoss weighs a class by the share of its hits that the batch at hand got wrong, which
      of two events is mostly chance. Plain cross entropy learns faster; the rarer a class, the more
      it counts.
    - Of the events' classes a batch has just two examples. So that loss starts with a small weight,
      through the temperature by which nugraph weighs its losses.
    - A step changes all weights by about as much. Where inputs are hundreds (NuGraph2 gives every
      iteration the features as they are), or outputs are metres (the vertex), the weights that are
      learned are those of inputs and outputs of order one; `finish` makes them nugraph's.

    Args:
        model: A new model; changed in place.
        graphs: The prepared training graphs.
    """
    true = torch.cat([graph["hit"].y_semantic for graph in graphs])
    by_class = _CrossEntropy(true[true >= 0], len(model.semantic_classes))
    if isinstance(model, NuGraph2):
        model.semantic_decoder.loss_func = by_class
        for plane, net in model.plane_net.net.items():
            size = torch.cat([graph[plane].x for graph in graphs]).square().mean(dim=0).sqrt()
            learned = torch.ones(model.hparams.planar_features)
            scale = torch.cat((learned, 1 / size)).repeat(2)  # of a hit, and of its neighbours
            for layer in (*net.edge_net[0].net, *net.node_net[0].net):
                register_parametrization(layer, "weight", _Scaled(scale))
        return
    model.semantic_decoder.loss = by_class
    flavours = torch.cat([graph["evt"].y for graph in graphs])
    model.event_decoder.loss = _CrossEntropy(flavours, len(model.event_classes))
    vertices = torch.cat([graph["evt"].y_vtx for graph in graphs])
    with torch.no_grad():
        model.event_decoder.temp.fill_(_EVENT_TEMPERATURE)
        model.vertex_decoder.net.bias.zero_()
    spread, mean = vertices.std(dim=0), vertices.mean(dim=0)
    register_parametrization(model.vertex_decoder.net, "weight", _Scaled(spread[:, None]))
    register_parametrization(model.vertex_decoder.net, "bias", _Scaled(spread, mean))


def finish(model: Network) -> None:
    """Give a model nugraph's own weights instead of those that `learn_quickly` had it learn."""
    for layer in model.modules():
        if is_parametrized(layer):
            for name in list(layer.parametrizations):
                remove_parametrizations(layer, name)


class _CrossEntropy(nn.Module):
    """Cross entropy in which a class counts by one over the root of its share of the truth."""

    def __init__(self, truth: torch.Tensor, classes: int) -> None:
        super().__init__()
        count = torch.bincount(truth, minlength=classes).clamp(min=1).float()
        self.weights = (count.mean() / count).sqrt()  # not a buffer: nugraph's has none to save

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(x, y, self.weights, ignore_index=-1)


class _Scaled(nn.Module):
    """What a layer uses, of what is learned: so many times as much, and an offset."""

    def __init__(self, scale: torch.Tensor, offset: torch.Tensor | None = None) -> None:
        super().__init__()
        self.scale, self.offset = scale, torch.zeros(()) if offset is None else offset

    def forward(self, learned: torch.Tensor) -> torch.Tensor:
        return learned * self.scale + self.offset


def normalise_by_events(model: Network, graphs: Sequence[HeteroData]) -> None:
    """Take the normalisation of the features from the training events.

    nugraph accumulates the mean and variance of the features during the first epoch, so that the
    input of the network drifts while it learns; in a training of minutes that matters.

    Args:
        model: a new model; changed in place.
        graphs: the prepared training graphs.
    """
    model.train()
    if isinstance(model, NuGraph2):
        norms = {plane: net[0] for plane, net in model.encoder.net.items()}
    else:
        norms = {"hit": model.encoder.input_norm}
    with torch.no_grad():
        for store, norm in norms.items():
            norm(torch.cat([graph[store].x for graph in graphs]))
            norm.update = False


def truth(graph: HeteroData) -> dict[str, NDArray[np.int64]]:
    """Return the true classes of the hits of each plane, in the order of the answer."""
    hits = graph["hit"]
    return {p: hits.y_semantic[hits.plane == n].numpy() for n, p in enumerate(PLANES)}


def collate(graphs: list[HeteroData]) -> Batch:
    """Return a batch of copies, since nugraph's models modify their input."""
    return Batch.from_data_list([graph.clone() for graph in graphs])
