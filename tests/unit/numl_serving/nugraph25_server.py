"""nugraph 25.4.0 and pynuml 25.4.0 themselves, in a process of their own.

They have the same package names as 24.7.1's, so that one process cannot have both. This one reads
pickled (command, arguments) from its standard input and writes pickled (whether it worked, result
or traceback) to its standard output, until the input ends.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")  # nugraph's imports warn of their own old age

sys.path.append(str(Path(__file__).resolve().parents[3] / "envs" / "numl"))

from numl_demo.nugraph25 import lay_beside  # noqa: E402

lay_beside(Path(os.environ["NUGRAPH25"]))

import nugraph.models.nugraph2.transform  # noqa: E402
import nugraph.models.nugraph3.decoders.instance  # noqa: E402
import nugraph.models.nugraph3.transform  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import pytorch_lightning as lightning  # noqa: E402
import torch  # noqa: E402
from nugraph.models import NuGraph2, NuGraph3  # noqa: E402
from numl_demo.graphs import Columns  # noqa: E402
from numl_demo.networks import concrete  # noqa: E402  # and mends a transform
from pynuml.data import NuGraphData  # noqa: E402
from pynuml.labels import FlavorLabels, StandardLabels  # noqa: E402
from pynuml.process import HitGraphProducer  # noqa: E402
from pytorch_lightning.plugins.environments import LightningEnvironment  # noqa: E402
from torch import nn  # noqa: E402
from torch_geometric.loader import DataLoader  # noqa: E402
from torch_geometric.transforms import Delaunay, FaceToEdge  # noqa: E402

Tables = Mapping[str, Mapping[str, Any]]

_MODELS: list[Any] = []

# A measure of training only, and it makes nugraph refuse an event whose clusters are all right.
nugraph.models.nugraph3.decoders.instance.adjusted_rand_score = lambda *_: torch.tensor(0.0)


def make(
    kind: str, gain: float, seed: int, events: Sequence[Tables], graph: Any, **sizes: Any
) -> int:
    """Make a model with random weights, and the feature normalisation of some events."""
    torch.manual_seed(seed)
    model = (NuGraph2 if kind == "nugraph2" else NuGraph3)(**sizes)
    for parameter in model.parameters():
        if parameter.requires_grad:  # the normalisation does not
            parameter.data *= gain
    model.train()
    with torch.no_grad():
        for tables in events:
            data = _transformed(model, _graph(tables, sizes["planes"], **graph), sizes["planes"])
            if kind == "nugraph2":
                model.encoder({plane: data[plane].x for plane in model.planes})
            else:
                model.encoder(data)
    _MODELS.append(model)
    return len(_MODELS) - 1


def train(
    kind: str, steps: int, seed: int, events: Sequence[Tables], graph: Any, **sizes: Any
) -> int:
    """Make a model and train it by Lightning, as nugraph's own script does."""
    lightning.seed_everything(seed)
    model = (NuGraph2 if kind == "nugraph2" else NuGraph3)(**sizes)
    planes = sizes["planes"]
    graphs = [
        _transformed(model, _graph(each, planes, truth=True, **graph), planes) for each in events
    ]
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        plugins=[LightningEnvironment()],  # else it asks MPI
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(graphs, batch_size=3, shuffle=True))
    _MODELS.append(model)
    return len(_MODELS) - 1


def state(model: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return a model's state dict."""
    return {name: tensor.numpy() for name, tensor in _MODELS[model].state_dict().items()}


def save(model: int, path: str) -> None:
    """Write a model as Lightning does."""
    content = {
        "epoch": 1,
        "pytorch-lightning_version": lightning.__version__,
        "state_dict": _MODELS[model].state_dict(),
        "hyper_parameters": dict(_MODELS[model].hparams),
    }
    torch.save(content, path)


@torch.no_grad()
def encode(model: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return hit features, and what the encoder makes of them (by plane for NuGraph2).

    The features' normalisation is that of these features.
    """
    network = _MODELS[model]
    torch.manual_seed(0)
    x = 20 * torch.randn(50, network.hparams.in_features) + 100
    for training in (True, False):  # training makes the statistics, and their shapes
        network.train(training)
        if isinstance(network, NuGraph2):
            by_plane = network.encoder(dict.fromkeys(network.hparams.planes, x))
            encoded = torch.stack(list(by_plane.values()))
        else:
            encoded = network.encoder.planar_net(network.encoder.input_norm(x))
    return x.numpy(), encoded.numpy()


@torch.no_grad()
def answer(model: int, tables: Tables, double: bool, graph: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Run a model on an event; returns arrays by output name, rows of a plane as in the table."""
    network = _MODELS[model]
    dtype = torch.float64 if double else torch.float32
    planes = network.hparams["planes"]
    data = _transformed(network, _graph(tables, planes, **graph), planes)
    for store in data.node_stores:
        for key, value in store.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                store[key] = value.to(dtype)
    network.eval().to(dtype)
    torch.set_default_dtype(dtype)
    torch.float = dtype  # what the spacepoint decoder calls the type of its answer
    try:
        outputs = (_nugraph2 if isinstance(network, NuGraph2) else _nugraph3)(network, data, planes)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.float = torch.float32
        network.float()
    return {name: tensor.numpy() for name, tensor in outputs.items()}


def _nugraph2(model: NuGraph2, data: NuGraphData, planes: Sequence[str]) -> dict[str, torch.Tensor]:
    outputs = model(
        {plane: data[plane].x for plane in planes},
        {plane: data[plane, "plane", plane].edge_index for plane in planes},
        {plane: data[plane, "nexus", "sp"].edge_index for plane in planes},
        torch.empty(data["sp"].num_nodes, 0),
        {},
    )
    return {f"{name}_{p}": value for name, ps in outputs.items() for p, value in ps.items()}


def _nugraph3(model: NuGraph3, data: NuGraphData, planes: Sequence[str]) -> dict[str, torch.Tensor]:
    losses = [decoder.loss for decoder in model.decoders]
    for decoder in model.decoders:
        decoder.loss = _NoLoss()
    model(data)
    for decoder, loss in zip(model.decoders, losses, strict=True):
        decoder.loss = loss
    hits, event = data["hit"], data["evt"]
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

    def forward(self, *_: Any) -> torch.Tensor:
        return torch.zeros(2)


def _graph(
    tables: Tables,
    planes: Sequence[str],
    *,
    node_feats: Sequence[str],
    generation: int,
    truth: bool = False,
) -> NuGraphData:
    """Make an event's graph, of the second generation by pynuml 25.4, or as 24.7.1 made them."""
    event = Columns({name: pd.DataFrame(dict(columns)) for name, columns in tables.items()})
    hits = event["hit_table"]
    if generation == 1:
        hits["local_wire"] = hits["local_wire"].astype(np.float32) * np.float32(0.3)
        hits["local_time"] = hits["local_time"].astype(np.float32) * np.float32(0.055)
    labels: dict[str, Any] = {}
    if truth:
        labels = {
            "semantic_labeller": StandardLabels(),
            "event_labeller": FlavorLabels(),
            "label_vertex": True,
        }
    producer = HitGraphProducer(
        Columns(), planes=list(planes), node_feats=list(node_feats), lower_bound=0, **labels
    )
    producer.transform = _triangulated
    if len(hits):
        _, data = producer(event)
    else:
        data = _graph_without_hits(len(event["spacepoint_table"]), len(node_feats) + 3)
    for store in data.node_stores:  # as NuGraphData.load does
        if store.num_nodes is not None and "x" not in store:
            store.x = torch.empty(store.num_nodes, 0)
    if truth:
        data["hit"].y_position = torch.zeros(len(hits), 3)
    else:
        data["hit"].y_semantic = torch.zeros(len(hits), dtype=torch.long)
        data["hit"].y_position = torch.zeros(len(hits), 3)
        data["evt"].y = torch.zeros(1, dtype=torch.long)
        data["evt"].y_vtx = torch.zeros(1, 3)
        data["particle-truth"].num_nodes = 0
        none = torch.zeros(2, 0, dtype=torch.long)
        data["hit", "cluster-truth", "particle-truth"].edge_index = none
    if generation == 1:
        _make_first_generation(data, planes, len(node_feats))
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


def _make_first_generation(data: NuGraphData, planes: Sequence[str], features: int) -> None:
    """Give the hits of each plane a store of their own, by NuGraph2's transform."""
    data["hit"].x = data["hit"].x[:, :features]
    concrete(nugraph.models.nugraph2.transform.Transform)(planes)(data)
    for plane in planes:
        data[plane].x = data[plane].x[:, 2:]
    for edge in [
        edge for edge in data.edge_types if edge[0] == "hit" and edge[2] != "particle-truth"
    ]:
        del data[edge]
    del data["hit"]


def _transformed(model: Any, data: NuGraphData, planes: Sequence[str]) -> NuGraphData:
    package = nugraph.models.nugraph2 if isinstance(model, NuGraph2) else nugraph.models.nugraph3
    transformed: NuGraphData = concrete(package.transform.Transform)(tuple(planes))(data)
    return transformed


_COMMANDS: Mapping[str, Callable[..., Any]] = {
    command.__name__: command for command in (make, train, state, save, encode, answer)
}


def main() -> None:
    """Answer commands."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever nugraph prints
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = True, _COMMANDS[name](**arguments)
        except Exception:
            answer = False, traceback.format_exc()
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
