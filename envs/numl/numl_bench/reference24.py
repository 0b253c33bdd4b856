"""pynuml 24.7.1 makes the graph, nugraph 24.7.1's own model answers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import mpi4py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from numl_formats.card import ModelCard

from .measure import Outputs, Tensors

# pynuml imports MPI, which leaves shared memory behind when a process with it is killed.
mpi4py.rc.initialize = False

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # nugraph's imports warn of their own old age
    from nugraph.models import NuGraph2, NuGraph3
    from nugraph.util import FeatureNorm, HierarchicalEdges, PositionFeatures
    from numl_demo.graphs import Columns, request_event
    from pynuml.process import HitGraphProducer

    from .nugraph_names import with_weights
    from .per_plane import PerPlaneNuGraph3


class Reference24:
    """NuGraph's own code with the weights of a model.

    Args:
        card: The model: one of nugraph 24.7.1, or the per-plane NuGraph3.
        weights: Its weights.
        dtype: What the network computes in.

    Attributes:
        model: nugraph's own model.
    """

    def __init__(
        self,
        card: ModelCard,
        weights: Mapping[str, NDArray[np.float32]],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.card = card
        self._dtype = dtype
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch Geometric's, of nugraph's own structure
            self.model = _model(card, weights).to(dtype)
        planes = list(card.planes)
        self._producer = HitGraphProducer(
            Columns(),
            planes=planes,
            pos_norm=list(card.position_scale),
            node_feats=list(card.hit_features[2:]),
            lower_bound=0,
        )
        norm = {
            plane: torch.tensor(np.array([each.mean, each.std], np.float32))
            for plane, each in (card.normalisation or {}).items()
        }
        self._transforms = (
            _concrete(PositionFeatures)(planes),
            _concrete(FeatureNorm)(planes, norm),
            _concrete(HierarchicalEdges)(planes),
        )

    def preprocess(self, tensors: Tensors) -> HeteroData:
        """Make the graph of a request's tensors."""
        _, data = self._producer(request_event(tensors))
        features = len(self.card.hit_features) - 2
        for plane in self.card.planes:
            if plane not in data.node_types:  # pynuml leaves out planes without hits
                data[plane].pos, data[plane].x = torch.zeros(0, 2), torch.zeros(0, features)
                none = torch.zeros(2, 0, dtype=torch.long)
                data[plane, "plane", plane].edge_index = none
                data[plane, "nexus", "sp"].edge_index = none
        if "pos" not in data["sp"]:
            data["sp"].pos = torch.zeros(data["sp"].num_nodes, 3)
        for transform in self._transforms:
            data = transform(data)
        for store in data.node_stores:
            for key, value in store.items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    store[key] = value.to(self._dtype)
        return data

    def network(self, data: HeteroData, *, gradients: bool) -> Outputs:
        """Answer a graph, which the models change; see `numl_bench.reference.Reference`."""
        default = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)
        try:
            with torch.set_grad_enabled(gradients):
                outputs = answer(self.model, data, self.card.planes)
        finally:
            torch.set_default_dtype(default)
        return {name: tensor.detach().numpy() for name, tensor in outputs.items()}


def _model(card: ModelCard, weights: Mapping[str, NDArray[np.float32]]) -> Any:
    spec = card.network
    classes = {head.name: list(head.classes or ()) for head in card.heads}
    sizes: dict[str, Any] = {
        "in_features": len(card.hit_features),
        "planar_features": spec.hit_width,
        "nexus_features": spec.nexus_width,
        "planes": list(card.planes),
        "num_iters": spec.iterations,
    }
    if "semantic" in classes:
        sizes["semantic_classes"] = classes["semantic"]
    model: Any
    if spec.kind == "nugraph2":
        heads = {f"{head}_head": head in classes for head in ("semantic", "filter")}
        model = NuGraph2(**sizes, **heads)
    else:
        sizes["interaction_features"] = spec.event_width
        if "event" in classes:
            sizes["event_classes"] = classes["event"]
        if spec.generation == "24.7.1":
            heads = {f"{head}_head": head in classes for head in _HEADS}
            model = NuGraph3(**sizes, **heads)
        else:
            model = PerPlaneNuGraph3(**sizes)
    for decoder in getattr(model, "decoders", ()):
        decoder.loss = _NoLoss()
    return with_weights(model, card, weights)


_HEADS = ("event", "semantic", "filter", "vertex")


def answer(model: Any, data: HeteroData, planes: tuple[str, ...]) -> dict[str, Tensor]:
    """Return what one of nugraph's models answers to a graph, by the names of the outputs."""
    if isinstance(model, PerPlaneNuGraph3):
        return model.answer(data)
    if isinstance(model, NuGraph2):
        outputs = model(
            {plane: data[plane].x for plane in planes},
            {plane: data[plane, "plane", plane].edge_index for plane in planes},
            {plane: data[plane, "nexus", "sp"].edge_index for plane in planes},
            torch.empty(data["sp"].num_nodes, 0),
            {},
        )
        return {f"{name}_{p}": value for name, ps in outputs.items() for p, value in ps.items()}
    for plane in planes:
        data[plane].y_semantic = torch.zeros(data[plane].num_nodes, dtype=torch.long)
    data["evt"].y = torch.zeros(1, dtype=torch.long)
    data["evt"].y_vtx = torch.zeros(1, 3)
    # 24.7.1's own forward ends in a NameError after the decoders: the same calls without its end.
    model.encoder(data)
    for _ in range(model.num_iters):
        model.core_net(data)
    for decoder in model.decoders:
        decoder(data)
    named = {
        f"{name}_{plane}": data[plane].get(name)
        for name in ("x_semantic", "x_filter")
        for plane in planes
    }
    named |= {"e_evt": data["evt"].get("e"), "v_evt": data["evt"].get("v")}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


class _NoLoss(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> float:
        return 0.0


def _concrete(transform: Any) -> Any:
    """Give nugraph's transform the ``forward`` that PyG has required since 2.4."""
    return type(transform.__name__, (transform,), {"forward": transform.__call__})
