"""nugraph 25.4.0 and pynuml 25.4.0 themselves, in a process of their own.

They have the same package names as 24.7.1's, so that one process cannot have both. This one reads
pickled (command, arguments) from its standard input and writes pickled (whether it worked, result
or traceback) to its standard output, until the input ends.
"""

import contextlib
import io
import os
import pickle
import runpy
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

warnings.simplefilter("ignore")  # nugraph's imports warn of their own old age

sys.path.append(str(Path(__file__).resolve().parents[3] / "envs" / "numl"))

from numl_demo.nugraph25 import lay_beside  # noqa: E402

lay_beside(Path(os.environ["NUGRAPH25"]))

import numpy as np  # noqa: E402
import pytorch_lightning as lightning  # noqa: E402
import torch  # noqa: E402
from edge_orders import reordered  # noqa: E402
from nugraph.models import NuGraph2, NuGraph3  # noqa: E402
from numl_bench.reference25 import nugraph_model  # noqa: E402
from numl_demo.graphs import POSITION_SCALE, Columns, scale_positions  # noqa: E402
from numl_demo.oracle import answer as oracle_answer  # noqa: E402
from numl_demo.oracle import make_graph, producer, transformed  # noqa: E402
from numl_serving.weights import read_weights  # noqa: E402
from pynuml.data import NuGraphData  # noqa: E402
from pynuml.labels import FlavorLabels, StandardLabels  # noqa: E402
from pytorch_lightning.plugins.environments import LightningEnvironment  # noqa: E402
from torch_geometric.loader import DataLoader  # noqa: E402

from numl_formats.cardfile import read_card  # noqa: E402

_MODELS: list[Any] = []


def make(
    kind: str, gain: float, seed: int, events: Sequence[Columns], graph: Any, **sizes: Any
) -> int:
    """Make a model with random weights, and the feature normalisation of some events."""
    torch.manual_seed(seed)
    model = (NuGraph2 if kind == "nugraph2" else NuGraph3)(**sizes)
    for parameter in model.parameters():
        if parameter.requires_grad:  # the normalisation does not
            parameter.data *= gain
    model.train()
    with torch.no_grad():
        for event in events:
            data = transformed(
                type(model), _graph(event, sizes["planes"], **graph), sizes["planes"]
            )
            if kind == "nugraph2":
                model.encoder({plane: data[plane].x for plane in model.planes})
            else:
                model.encoder(data)
    _MODELS.append(model)
    return len(_MODELS) - 1


def train(
    kind: str, steps: int, seed: int, events: Sequence[Columns], graph: Any, **sizes: Any
) -> int:
    """Make a model and train it by Lightning, as nugraph's own script does."""
    lightning.seed_everything(seed)
    model = (NuGraph2 if kind == "nugraph2" else NuGraph3)(**sizes)
    planes = sizes["planes"]
    graphs = [
        transformed(type(model), _graph(each, planes, truth=True, **graph), planes)
        for each in events
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
def normalise(model: int) -> None:
    """Give a model the feature normalisation of features that are made up."""
    network = _MODELS[model].train()
    x = 20 * torch.randn(50, network.hparams.in_features) + 100
    if isinstance(network, NuGraph2):
        network.encoder(dict.fromkeys(network.hparams.planes, x))
    else:
        network.encoder.input_norm(x)


def load(folder: str) -> int:
    """Make a model with the weights of a model folder."""
    card = read_card(Path(folder) / "model.json")
    _MODELS.append(nugraph_model(card, read_weights(Path(folder), card)))
    return len(_MODELS) - 1


def answer(
    model: int, event: Columns, doubles: Sequence[bool], order: int, graph: Any
) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Run a model on an event, its edges in an order, in float64 or float32 each time.

    Returns arrays by output name, rows of a plane as in the table.
    """
    network = _MODELS[model].eval()
    planes = network.hparams["planes"]
    data = reordered(transformed(type(network), _graph(event, planes, **graph), planes), order)
    return [_answer(network, data.clone(), planes, double) for double in doubles]


def run(script: str, words: Sequence[str]) -> tuple[Any, str]:
    """Run a script of the kit for nugraph 25.4 here; return its exit status and what it printed."""
    printed = io.StringIO()
    with (
        patch("numl_demo.nugraph25.lay_beside"),  # they are, and a second time is refused
        patch.object(sys, "argv", [script, *words]),
        patch.object(sys, "path", [str(Path(script).parent), *sys.path]),
        patch.object(tempfile, "tempdir", None),
        contextlib.redirect_stdout(printed),
    ):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            return end.code, printed.getvalue()
    return 0, printed.getvalue()


def _answer(
    network: Any, data: NuGraphData, planes: Sequence[str], double: bool
) -> dict[str, np.ndarray[Any, Any]]:
    if not double:
        return oracle_answer(network, data, planes)
    for store in data.node_stores:
        for key, value in store.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                store[key] = value.double()
    network.double()
    torch.set_default_dtype(torch.float64)
    torch.float = torch.float64  # what the spacepoint decoder calls the type of its answer
    try:
        return oracle_answer(network, data, planes)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.float = torch.float32
        network.float()


def _graph(
    event: Columns,
    planes: Sequence[str],
    *,
    node_feats: Sequence[str],
    generation: int,
    truth: bool = False,
) -> NuGraphData:
    """Make an event's graph, of the second generation by pynuml 25.4, or as 24.7.1 made them."""
    labels: dict[str, Any] = {}
    if truth:
        labels = {
            "semantic_labeller": StandardLabels(),
            "event_labeller": FlavorLabels(),
            "label_vertex": True,
        }
    if generation == 1:
        scale_positions(event, POSITION_SCALE)
    data = make_graph(producer(planes, node_feats, **labels), event)
    if truth:
        data["hit"].y_position = torch.zeros(data["hit"].num_nodes, 3)
    if generation == 1:
        _make_first_generation(data, planes, len(node_feats))
    return data


def _make_first_generation(data: NuGraphData, planes: Sequence[str], features: int) -> None:
    """Give the hits of each plane a store of their own, by NuGraph2's transform."""
    data["hit"].x = data["hit"].x[:, :features]
    transformed(NuGraph2, data, planes)
    for plane in planes:
        data[plane].x = data[plane].x[:, 2:]
    for edge in [
        edge for edge in data.edge_types if edge[0] == "hit" and edge[2] != "particle-truth"
    ]:
        del data[edge]
    del data["hit"]


_COMMANDS: Mapping[str, Callable[..., Any]] = {
    command.__name__: command
    for command in (make, train, load, state, save, normalise, answer, run)
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
