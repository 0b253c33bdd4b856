"""The reference for the networks: nugraph 24.7.1's own models on PyTorch Geometric's own graphs.

The per-plane NuGraph3 was never released: `numl_bench.per_plane` puts its reference together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from nugraph.models import NuGraph2, NuGraph3
from nugraph.util import FeatureNorm, HierarchicalEdges
from numl_bench.per_plane import PerPlaneNuGraph3
from numl_serving.event import PLANES, Event, HitTable, SpacepointTable
from numl_serving.graph import EventGraph
from numl_serving.modelcard import PlaneNormalisation
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import HeteroData

NORMALISATION = {
    "u": PlaneNormalisation((389.4, 172.9, 147.8, 4.56), (147.2, 78.0, 228.3, 2.22)),
    "v": PlaneNormalisation((368.8, 173.0, 154.1, 4.45), (145.3, 80.5, 282.3, 1.90)),
    "y": PlaneNormalisation((546.3, 172.8, 117.0, 4.16), (283.5, 74.0, 115.5, 1.46)),
}


def heterodata(graph: EventGraph) -> HeteroData:
    """Make the graph object that pynuml and nugraph's transforms hand to a model."""
    data = HeteroData()
    position = graph.spacepoint_position
    if position is None:
        position = np.zeros((graph.num_spacepoints, 3), np.float32)
    data["sp"].pos = torch.tensor(position)
    data["sp"].num_nodes = graph.num_spacepoints
    for name, plane in zip(PLANES, graph.planes, strict=True):
        data[name].x = torch.tensor(plane.features)
        data[name].y_semantic = torch.zeros(len(plane.features), dtype=torch.long)
        data[name, "plane", name].edge_index = torch.tensor(plane.edges)
        data[name, "nexus", "sp"].edge_index = torch.tensor(plane.nexus)
    norm = {
        plane: torch.tensor(np.array([n.mean, n.std], np.float32))
        for plane, n in NORMALISATION.items()
    }
    data = FeatureNorm.__call__(_Transform(norm), data)
    data = HierarchicalEdges.__call__(_Transform(norm), data)
    data["evt"].y = torch.zeros(1, dtype=torch.long)
    data["evt"].y_vtx = torch.zeros(1, 3)
    return data


class _Transform:
    """Stands in for nugraph's transforms, which newer PyTorch Geometric makes abstract."""

    def __init__(self, norm: dict[str, Tensor]) -> None:
        self.norm = norm
        self.planes = list(PLANES)


def answer(
    model: nn.Module, graph: EventGraph, dtype: torch.dtype = torch.float32
) -> dict[str, NDArray[Any]]:
    """Run a reference model on one event; returns arrays by output name."""
    model = model.to(dtype).eval()
    data = heterodata(graph)
    for store in data.node_stores:
        for key, value in store.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                store[key] = value.to(dtype)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        outputs = _answer(model, data)
    finally:
        torch.set_default_dtype(default)
    return {name: value.numpy() for name, value in outputs.items()}


@torch.no_grad()
def _answer(model: Any, data: HeteroData) -> dict[str, Tensor]:
    if isinstance(model, NuGraph3):
        return _nugraph3(model, data)
    if isinstance(model, NuGraph2):
        return _nugraph2(model, data)
    outputs: dict[str, Tensor] = model.answer(data)
    return outputs


class _NoLoss(nn.Module):
    """Stands in for the decoders' losses, which take neither float64 nor an empty event."""

    def forward(self, x: Tensor, y: Tensor) -> float:
        return 0.0


def _nugraph3(model: NuGraph3, data: HeteroData) -> dict[str, Tensor]:
    # 24.7.1's own forward ends in a NameError after the decoders: the same calls without its end.
    model.encoder(data)
    for _ in range(model.num_iters):
        model.core_net(data)
    for decoder in model.decoders:
        decoder.loss = _NoLoss()
        decoder(data)
    outputs = {}
    for plane in PLANES:
        for name in ("x_semantic", "x_filter"):
            if name in data[plane]:
                outputs[f"{name}_{plane}"] = data[plane][name]
    for name in ("e", "v"):
        if name in data["evt"]:
            outputs[f"{name}_evt"] = data["evt"][name]
    return outputs


def _nugraph2(model: NuGraph2, data: HeteroData) -> dict[str, Tensor]:
    outputs = model(
        {plane: data[plane].x for plane in PLANES},
        {plane: data[plane, "plane", plane].edge_index for plane in PLANES},
        {plane: data[plane, "nexus", "sp"].edge_index for plane in PLANES},
        torch.empty(data["sp"].num_nodes, 0),
        {},
    )
    return {f"{name}_{p}": value for name, planes in outputs.items() for p, value in planes.items()}


KINDS = ("24.7.1", "per-plane", "nugraph2")
"""The variants of NuGraph3, and NuGraph2."""


_GAIN = {"24.7.1": 2.35, "per-plane": 2.5, "nugraph2": 2.5}


def reference(kind: str, seed: int) -> nn.Module:
    """Make a reference model with random weights.

    They are larger than those a training starts from: with smaller ones every hit gets nearly
    the same answer, whatever its edges, with larger ones rounding errors grow from iteration to
    iteration.
    """
    torch.manual_seed(seed)
    model: nn.Module
    if kind == "nugraph2":
        model = NuGraph2()
    elif kind == "24.7.1":
        model = NuGraph3(event_head=True, vertex_head=True)
    else:
        model = PerPlaneNuGraph3()
    for parameter in model.parameters():
        parameter.data *= _GAIN[kind]
    return model


def random_event(
    rng: np.random.Generator,
    hits: int,
    *,
    planes: tuple[int, ...] = (0, 1, 2),
    positions: bool = False,
    duplicates: bool = False,
) -> Event:
    """Make an event of scattered hits, two in five of them joined by spacepoints.

    Args:
        rng: The source of randomness.
        hits: Number of hits.
        planes: Planes that get hits.
        positions: Whether spacepoints carry positions.
        duplicates: Whether hit ids repeat, so that spacepoints have several edges in a plane.
    """
    plane = rng.choice(np.array(planes, np.int32), hits)
    ids = np.arange(hits, dtype=np.int32)
    if duplicates:
        ids //= 3
    rng.shuffle(ids)
    spacepoints = 2 * hits // 5
    hit_ids = [
        np.where(rng.random(spacepoints) < 0.2, -1, rng.choice(ids[plane == p], spacepoints))
        if (plane == p).any()
        else np.full(spacepoints, -1)
        for p in range(3)
    ]
    return Event(
        hits=HitTable(
            hit_id=ids,
            local_plane=plane,
            local_time=rng.uniform(0, 6400, hits).astype(np.float32),
            local_wire=rng.integers(0, 3456, hits, dtype=np.int32),
            integral=rng.lognormal(4.5, 1, hits).astype(np.float32),
            rms=rng.uniform(2, 12, hits).astype(np.float32),
        ),
        spacepoints=SpacepointTable(
            np.arange(spacepoints, dtype=np.int32),
            hit_id_u=hit_ids[0].astype(np.int32),
            hit_id_v=hit_ids[1].astype(np.int32),
            hit_id_y=hit_ids[2].astype(np.int32),
            position=rng.uniform(-1, 1, (spacepoints, 3)).astype(np.float32) if positions else None,
        ),
    )
