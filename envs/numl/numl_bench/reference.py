"""The reference path: pynuml and PyTorch Geometric make the graph, nugraph's own model answers.

It is what a Triton model with NuGraph's own stack does for a request, at its best: the losses,
which 24.7.1's decoders compute for every event, are left out, and so is collating into a batch.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np
import pandas as pd
import safetensors.torch
import torch
from numl_serving.modelcard import CARD_FILE, ModelCard, read_card
from numl_serving.networks.variants import canonical_name, is_served
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import HeteroData

# pynuml imports MPI, which leaves shared memory behind when a process with it is killed.
mpi4py.rc.initialize = False

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # nugraph's imports warn of their own old age
    from nugraph.models import NuGraph2, NuGraph3
    from nugraph.util import FeatureNorm, HierarchicalEdges, PositionFeatures
    from pynuml.process import HitGraphProducer

    from .per_plane import PLANES, PerPlaneNuGraph3

Outputs = dict[str, NDArray[np.float32]]
Tensors = Mapping[str, NDArray[Any]]


class Reference:
    """NuGraph's own code with the weights of a model folder.

    Args:
        directory: Folder with ``model.json`` and weights.
    """

    def __init__(self, directory: Path) -> None:
        self.card = read_card(directory / CARD_FILE)
        state = safetensors.torch.load_file(directory / self.card.weights.file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch Geometric's, of nugraph's own structure
            self._model = _model(self.card, state)
        self._producer = HitGraphProducer(_Columns(), lower_bound=0)
        planes = list(PLANES)
        norm = {
            plane: torch.tensor(np.array([each.mean, each.std], np.float32))
            for plane, each in self.card.normalisation.items()
        }
        self._transforms = (
            _concrete(PositionFeatures)(planes),
            _concrete(FeatureNorm)(planes, norm),
            _concrete(HierarchicalEdges)(planes),
        )

    def preprocess(self, tensors: Tensors) -> HeteroData:
        """Make the graph of a request's tensors."""
        tables = _Columns()
        for table in ("hit_table", "spacepoint_table"):
            tables[table] = pd.DataFrame(
                {
                    name.removeprefix(f"{table}_"): array
                    for name, array in tensors.items()
                    if name.startswith(table)
                }
            )
        _, data = self._producer(tables)
        data["sp"].pos = torch.zeros(data["sp"].num_nodes, 3)
        for transform in self._transforms:
            data = transform(data)
        return data

    def network(self, data: HeteroData, *, gradients: bool) -> Outputs:
        """Answer a graph, which the models change.

        Args:
            data: The graph.
            gradients: Whether torch records what a backward pass would need, as it does where
                nobody has told it not to.
        """
        with torch.set_grad_enabled(gradients):
            outputs = _answer(self._model, data)
        return {name: tensor.detach().numpy() for name, tensor in outputs.items()}


def _model(card: ModelCard, state: Mapping[str, Tensor]) -> Any:
    classes = list(card.semantic_classes)
    events = list(card.event_classes or ())
    iterations = card.hyperparameters["iterations"]
    model: Any
    if card.architecture == "nugraph2":
        model = NuGraph2(
            planar_features=card.hyperparameters["planar_features"],
            nexus_features=card.hyperparameters["nexus_features"],
            planes=list(PLANES),
            semantic_classes=classes,
            num_iters=iterations,
            semantic_head="semantic" in card.heads,
            filter_head="filter" in card.heads,
        )
    elif card.variant == "24.7.1":
        model = NuGraph3(
            planar_features=card.hyperparameters["planar_features"],
            nexus_features=card.hyperparameters["nexus_features"],
            interaction_features=card.hyperparameters["interaction_features"],
            planes=PLANES,
            semantic_classes=tuple(classes),
            event_classes=tuple(events),
            num_iters=iterations,
            **{f"{head}_head": head in card.heads for head in _HEADS},
        )
    else:
        model = PerPlaneNuGraph3(len(classes), len(events), iterations)
    # PyTorch Geometric's own spelling of an edge type depends on its version.
    names = {canonical_name(name): name for name in model.state_dict()}
    missing, unexpected = model.load_state_dict(
        {names.get(name, name): tensor for name, tensor in state.items()}, strict=False
    )
    lacking = [name for name in missing if is_served(name)]
    if lacking or unexpected:
        raise ValueError(f"nugraph's model does not take these weights: {lacking} {unexpected}")
    for decoder in getattr(model, "decoders", ()):
        decoder.loss = _NoLoss()
    return model.eval()


_HEADS = ("event", "semantic", "filter", "vertex")


def _answer(model: Any, data: HeteroData) -> dict[str, Tensor]:
    if isinstance(model, PerPlaneNuGraph3):
        return model.answer(data)
    if isinstance(model, NuGraph2):
        outputs = model(
            {plane: data[plane].x for plane in PLANES},
            {plane: data[plane, "plane", plane].edge_index for plane in PLANES},
            {plane: data[plane, "nexus", "sp"].edge_index for plane in PLANES},
            torch.empty(data["sp"].num_nodes, 0),
            {},
        )
        return {f"{name}_{p}": value for name, ps in outputs.items() for p, value in ps.items()}
    for plane in PLANES:
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
        for plane in PLANES
    }
    named |= {"e_evt": data["evt"].get("e"), "v_evt": data["evt"].get("v")}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


class _NoLoss(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> float:
        return 0.0


class _Columns(dict[str, Any]):
    """What pynuml's producer asks of a file (add_group) and of an event (tables, name, id)."""

    event_id = (1, 1, 1)
    name = "event"

    def add_group(self, group: str, keys: Any = None) -> None:
        """Take note of nothing: every column is at hand."""


def _concrete(transform: Any) -> Any:
    """Return nugraph's transform as PyG 2.4 and later want it: with a ``forward``."""
    return type(transform.__name__, (transform,), {"forward": transform.__call__})


def describe(directory: Path) -> str:
    """Return architecture and variant of a model folder in one line."""
    card = json.loads((directory / CARD_FILE).read_text(encoding="utf-8"))
    return f"{card['architecture']} ({card['variant']})"
