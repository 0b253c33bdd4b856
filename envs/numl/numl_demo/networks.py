"""NuGraph's own models, of nugraph 25.4.0, built for training on the demo and as its oracle.

Before this module is imported, `nugraph25.lay_beside` says where they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch_geometric.data import Batch, HeteroData
from torch_geometric.utils import subgraph

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # nugraph's imports warn of their own old age
    import nugraph.models.nugraph2.transform as nugraph2_transform
    import nugraph.models.nugraph3.transform as nugraph3_transform
    from nugraph.models import NuGraph2, NuGraph3

from .geometry import PLANES
from .graphs import COLUMNS, NUGRAPH2_LABELS, NUGRAPH3_LABELS, Labels

MODELS: Final[dict[str, Labels]] = {"nugraph2": NUGRAPH2_LABELS, "nugraph3": NUGRAPH3_LABELS}
# the position, the columns and, where all planes share their weights, the plane
_FEATURES: Final = {"nugraph2": 2 + len(COLUMNS), "nugraph3": 2 + len(COLUMNS) + 1}
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
    transforms = nugraph2_transform if name == "nugraph2" else nugraph3_transform
    transform = concrete(transforms.Transform)(PLANES)
    prepared = []
    for data in graphs:
        # The features of the first generation: pynuml 25.4 adds plane, wire and time.
        data["hit"].x = data["hit"].x[:, : _FEATURES[name] - 2]
        del data["metadata"], data["hit", "delaunay", "hit"]  # no model reads these edges
        for store in data.node_stores:
            if "x" not in store:
                store.x = torch.empty(store.num_nodes, 0)
        if "y" not in data["evt"]:
            data["evt"].y = torch.zeros(1, dtype=torch.long)
        prepared.append(transform(data))
    return prepared


def concrete(transform: Any) -> Any:
    """Give nugraph's transform the `forward` that PyG has required since 2.4."""
    return type(transform.__name__, (transform,), {"forward": transform.__call__})


def _subgraph(hits: torch.Tensor, edges: torch.Tensor, *, relabel_nodes: bool) -> Any:
    """Work like PyTorch Geometric's, but also if isolated hits are not the last ones."""
    nodes = max([0, *(hits + 1).tolist(), *(edges + 1).flatten().tolist()])
    return subgraph(hits, edges, relabel_nodes=relabel_nodes, num_nodes=nodes)


nugraph2_transform.subgraph = _subgraph


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


def start_from_events(model: NuGraph2 | NuGraph3, graphs: Sequence[HeteroData]) -> None:
    """Initialise input normalisation and vertex head from the training events.

    nugraph accumulates the mean and variance of the features during the first epoch, so that the
    input of the network drifts while it learns; in a training of minutes that matters. And the
    vertex head is one linear layer with inputs of order one and targets that span metres: starting
    at the mean vertex instead of the detector's corner saves it most of the way.

    Args:
        model: a new model; changed in place.
        graphs: the prepared training graphs.
    """
    model.train()
    with torch.no_grad():
        if isinstance(model, NuGraph2):
            norms = {plane: net[0] for plane, net in model.encoder.net.items()}
        else:
            norms = {"hit": model.encoder.input_norm}
        for store, norm in norms.items():
            norm(torch.cat([graph[store].x for graph in graphs]))
            norm.update = False
        if isinstance(model, NuGraph3):
            vertices = torch.cat([graph["evt"].y_vtx for graph in graphs])
            model.vertex_decoder.net.bias.copy_(vertices.mean(dim=0))


@torch.inference_mode()
def answer(model: NuGraph2 | NuGraph3, graph: HeteroData) -> Arrays:
    """Return nugraph's own answer for one prepared graph, by the names of the server's outputs.

    Args:
        model: a model as `build` makes it, in evaluation mode.
        graph: one graph as `prepare` makes it; it is not changed.
    """
    data = collate([graph])
    out: dict[str, torch.Tensor] = {}
    if isinstance(model, NuGraph2):
        model.step(data)
        for plane in PLANES:
            out[f"x_semantic_{plane}"] = data[plane].x_semantic
            out[f"x_filter_{plane}"] = data[plane].x_filter
    else:
        model(data)
        hits = data["hit"]
        for number, plane in enumerate(PLANES):
            out[f"x_semantic_{plane}"] = hits.x_semantic[hits.plane == number]
            out[f"x_filter_{plane}"] = hits.x_filter[hits.plane == number]
        out["e_evt"], out["v_evt"] = data["evt"].e, data["evt"].v
    return {name: value.numpy().astype(np.float32) for name, value in out.items()}


def truth(graph: HeteroData) -> dict[str, NDArray[np.int64]]:
    """Return the true classes of the hits of each plane, in the order of the answer."""
    hits = graph["hit"]
    return {p: hits.y_semantic[hits.plane == n].numpy() for n, p in enumerate(PLANES)}


def collate(graphs: list[HeteroData]) -> Batch:
    """Return a batch of copies, since nugraph's models modify their input."""
    return Batch.from_data_list([graph.clone() for graph in graphs])
