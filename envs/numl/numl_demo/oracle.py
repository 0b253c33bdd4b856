"""What pynuml 25.4.0 and nugraph 25.4.0 themselves make of an event: a graph, and the answer.

Training, benchmark and tests all ask these functions. Before this module is imported,
`nugraph25.lay_beside` says where both are.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.transforms import Delaunay, FaceToEdge
from torch_geometric.utils import subgraph

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # nugraph's imports warn of their own old age
    import nugraph.models.nugraph2.transform as nugraph2_transform
    import nugraph.models.nugraph3.decoders.instance as instance_decoder
    import nugraph.models.nugraph3.transform as nugraph3_transform
    from nugraph.models import NuGraph2, NuGraph3
    from pynuml.data import NuGraphData
    from pynuml.process import HitGraphProducer

from .graphs import Columns

__all__ = [
    "ADDED",
    "Arrays",
    "Network",
    "NuGraph2",
    "NuGraph3",
    "NuGraphData",
    "answer",
    "make_graph",
    "producer",
    "transformed",
]

Network: TypeAlias = NuGraph2 | NuGraph3
Arrays: TypeAlias = dict[str, NDArray[Any]]

ADDED: Final = ("local_plane", "local_wire", "local_time")
"""The hit features that pynuml puts behind the columns it is asked for."""


def producer(planes: Sequence[str], columns: Sequence[str], **labels: Any) -> HitGraphProducer:
    """Return pynuml's producer, which takes planes with one hit or none, too.

    Args:
        planes: Names of the planes.
        columns: Columns of the hit table that become features.
        labels: What it is told of the truth.
    """
    made = HitGraphProducer(
        Columns(), planes=list(planes), node_feats=list(columns), lower_bound=0, **labels
    )
    made.transform = _triangulated
    return made


def make_graph(by: HitGraphProducer, event: Columns) -> NuGraphData:
    """Return an event's graph as pynuml's files give it back."""
    if len(event["hit_table"]):
        _, data = by(event)
    else:
        data = _graph_without_hits(len(event["spacepoint_table"]), len(by.node_feats) + len(ADDED))
    for store in data.node_stores:
        if store.num_nodes is not None and "x" not in store:
            store.x = torch.empty(store.num_nodes, 0)
    return data


def _triangulated(hits: Any) -> Any:
    """Do what the producer's transform does; that one fails where a plane has one hit or two."""
    hits = Delaunay()(hits)
    return FaceToEdge()(hits) if "face" in hits else hits


def _graph_without_hits(spacepoints: int, features: int) -> NuGraphData:
    """Make what pynuml fails to: an event without hits."""
    data = NuGraphData()
    data["hit"].plane = torch.zeros(0, dtype=torch.long)
    data["hit"].pos, data["hit"].x = torch.zeros(0, 2), torch.zeros(0, features)
    data["sp"].num_nodes, data["evt"].num_nodes = spacepoints, 1
    none = torch.zeros(2, 0, dtype=torch.long)
    data["hit", "delaunay-planar", "hit"].edge_index = none
    data["hit", "nexus", "sp"].edge_index = none
    owned = torch.stack((torch.arange(spacepoints), torch.zeros(spacepoints, dtype=torch.long)))
    data["sp", "in", "evt"].edge_index = owned
    return data


def transformed(kind: type[Network], data: NuGraphData, planes: Sequence[str]) -> NuGraphData:
    """Return a graph as nugraph's data module feeds it to a model; modifies it.

    Args:
        kind: Class of the model.
        data: A graph.
        planes: Names of the planes.
    """
    if "y" not in data["evt"]:
        data["evt"].y = torch.zeros(1, dtype=torch.long)
    transform = _TRANSFORMS[kind](tuple(planes))
    graph: NuGraphData = transform(data)
    return graph


def _concrete(transform: Any) -> Any:
    """Give nugraph's transform the `forward` that PyG has required since 2.4."""
    return type(transform.__name__, (transform,), {"forward": transform.__call__})


_TRANSFORMS: Final = {
    NuGraph2: _concrete(nugraph2_transform.Transform),
    NuGraph3: _concrete(nugraph3_transform.Transform),
}


def _subgraph(hits: Tensor, edges: Tensor, *, relabel_nodes: bool) -> Any:
    """Work like PyTorch Geometric's, but also if isolated hits are not the last ones."""
    nodes = max((int(each.max()) + 1 for each in (hits, edges) if each.numel()), default=0)
    return subgraph(hits, edges, relabel_nodes=relabel_nodes, num_nodes=nodes)


nugraph2_transform.subgraph = _subgraph

# A measure of training only, and it makes nugraph refuse an event whose clusters are all right.
instance_decoder.adjusted_rand_score = lambda *_: torch.tensor(0.0)


def answer(
    model: Network, data: NuGraphData, planes: Sequence[str], *, gradients: bool = False
) -> Arrays:
    """Return nugraph's own answer to one event, by the names of the server's outputs.

    The losses, which the decoders compute for every event, are left out.

    Args:
        model: One of nugraph's models, in evaluation mode.
        data: A graph as `transformed` makes it, which nugraph's models change.
        planes: Names of the planes; rows of a plane are in the order of its hits.
        gradients: Whether torch records what a backward pass would need.
    """
    of = _of_nugraph2 if isinstance(model, NuGraph2) else _of_nugraph3
    with torch.set_grad_enabled(gradients):
        outputs = of(model, data, planes)
    return {name: tensor.detach().numpy() for name, tensor in outputs.items()}


def _of_nugraph2(model: NuGraph2, data: NuGraphData, planes: Sequence[str]) -> dict[str, Tensor]:
    outputs = model(
        {plane: data[plane].x for plane in planes},
        {plane: data[plane, "plane", plane].edge_index for plane in planes},
        {plane: data[plane, "nexus", "sp"].edge_index for plane in planes},
        torch.empty(data["sp"].num_nodes, 0),
        {},
    )
    return {f"{name}_{p}": value for name, ps in outputs.items() for p, value in ps.items()}


def _of_nugraph3(model: NuGraph3, data: NuGraphData, planes: Sequence[str]) -> dict[str, Tensor]:
    hits, event = data["hit"], data["evt"]
    hits.y_semantic = torch.zeros(hits.num_nodes, dtype=torch.long)
    hits.y_position = torch.zeros(hits.num_nodes, 3)
    event.y, event.y_vtx = torch.zeros(1, dtype=torch.long), torch.zeros(1, 3)
    data["particle-truth"].num_nodes = 0
    none = torch.zeros(2, 0, dtype=torch.long)
    data["hit", "cluster-truth", "particle-truth"].edge_index = none
    losses = [decoder.loss for decoder in model.decoders]
    for decoder in model.decoders:
        decoder.loss = _NoLoss()
    try:
        model(data)
    finally:
        for decoder, loss in zip(model.decoders, losses, strict=True):
            decoder.loss = loss
    found = {f"{name}_evt": event[name] for name in ("e", "v") if name in event}
    by_hit = {n: hits[n] for n in ("x_semantic", "x_filter", "x_position", "of", "ox") if n in hits}
    if "ox" in by_hit:
        by_hit["x_i"] = data.x_i().int()
    for name, values in by_hit.items():
        for number, plane in enumerate(planes):
            found[f"{name}_{plane}"] = values[hits.plane == number]
    return found


class _NoLoss(nn.Module):
    """Stands in for a decoder's loss, which needs the truth: two numbers, as the instances'."""

    def forward(self, *_: Any) -> Tensor:
        return torch.zeros(2)
