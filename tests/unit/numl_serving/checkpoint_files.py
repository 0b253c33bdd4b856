"""Make checkpoints with nugraph's own models, and what is given to the importer with them."""

import functools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numl_bench.per_plane import PerPlaneNuGraph3
from numl_serving.importer import Request
from numl_serving.recognition import Recognised, is_served, modern_name, recognise
from oracle25 import server
from torch import nn

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]

UVY = ("u", "v", "y")
FILES = {"weights.safetensors", "model.json", "golden.npz"}
"""What an import writes."""

HEADS = ("semantic", "filter", "event", "vertex", "spacepoint", "instance")
"""Heads of nugraph 25.4's NuGraph3, in the order of the card."""


def norm_file(folder: Path, content: Any = None) -> Path:
    """Write a normalisation as JSON."""
    path = folder / "norm.json"
    default = {p: {"mean": [390, 170, 150, 4.5], "std": [150, 80, 230, 2.2]} for p in UVY}
    path.write_text(json.dumps(default if content is None else content))
    return path


def checkpoint_of(state: Mapping[str, Any], folder: Path, **changes: Any) -> Path:
    """Write a checkpoint as Lightning writes it, with changed hyper-parameters."""
    hyper_parameters = {
        "planes": ["u", "v", "y"],
        "semantic_classes": ["a", "b", "c", "d", "e"],
        "event_classes": ["numu", "nue", "nc"],
        "num_iters": 5,
    } | changes
    path = folder / "model.ckpt"
    content = {
        "state_dict": state,
        "hyper_parameters": hyper_parameters,
        "pytorch-lightning_version": "2.6.6",
    }
    torch.save(content, path)
    return path


def model24(kind: str, **arguments: Any) -> nn.Module:
    """Make a model of nugraph 24.7.1 (``24.7.1`` or ``nugraph2``), or the ``per-plane`` one."""
    from nugraph.models import NuGraph2, NuGraph3

    torch.manual_seed(0)
    model: nn.Module
    if kind == "per-plane":
        model = PerPlaneNuGraph3()
    elif kind == "nugraph2":
        model = NuGraph2(**arguments)
    else:
        model = NuGraph3(**({"event_head": True, "vertex_head": True} | arguments))
    return model


def architecture(kind: str) -> str:
    """Return what ``--model`` is for a kind, or a checkpoint's name."""
    return "nugraph2" if kind.startswith("nugraph2") else "nugraph3"


def served(state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return the weights that inference uses, as arrays by their modern names."""
    return {modern_name(n): tensor.numpy() for n, tensor in state.items() if is_served(n)}


def recognised(state: Mapping[str, Any], kind: str, **more: Any) -> Recognised:
    """Recognise the network of a state dict."""
    return recognise({name: array.shape for name, array in state.items()}, kind, **more)


def names_in(folder: Path) -> set[str]:
    """Return the names of what is in a folder."""
    return {path.name for path in folder.iterdir()}


def request_for(kind: str, folder: Path, **changes: Any) -> Request:
    """Return the request to import a new model of 24.7.1 or before."""
    if kind == "per-plane":
        changes = {"semantic_classes": list("abcdefg"), "event_classes": list("abcd")} | changes
    checkpoint = checkpoint_of(model24(kind).state_dict(), folder, **changes)
    return Request(checkpoint, architecture(kind), folder / "out", norm_file(folder))


def processed_file(path: Path, generation: int | None, norm: bool, **names: list[str]) -> Path:
    """Write what pynuml's processed files say of all their graphs."""
    with h5py.File(path, "w") as file:
        for name, values in names.items():
            file[name] = values
        file["dataset/r1_sr1_evt1"] = 0
        if generation is not None:
            file["gen"] = torch.tensor([generation])
        if norm:
            for plane in names["planes"]:
                file[f"norm/{plane}"] = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
    return path


def heads25(*there: str) -> dict[str, bool]:
    """Return the arguments of nugraph 25.4's NuGraph3 that give it just these heads."""
    return {f"{head}_head": head in there for head in HEADS}


CASES25: Mapping[str, Any] = {
    "default": {"kind": "nugraph3", "in_features": 5},
    "two_planes": {
        "kind": "nugraph3",
        "in_features": 7,
        "planes": ["x", "y2"],
        "semantic_classes": ["a", "b", "c", "d", "e", "f", "diffuse"],
        "num_iters": 3,
        **heads25(*HEADS),
    },
    "four_planes": {
        "kind": "nugraph3",
        "in_features": 8,
        "planes": ["w", "u", "v", "y"],
        "hit_features": 24,
        "nexus_features": 7,
        "interaction_features": 9,
        **heads25("semantic", "vertex", "instance", "spacepoint"),
    },
    "nine_features": {"kind": "nugraph3", "in_features": 9},
    "nugraph2": {"kind": "nugraph2", "in_features": 7},
    "nugraph2_four_planes": {
        "kind": "nugraph2",
        "in_features": 8,
        "planes": ["a", "b", "c", "d"],
        "semantic_classes": ["s", "t"],
        "filter_head": False,
    },
}
"""Models of nugraph 25.4 by the name of their checkpoint."""


@functools.cache
def folder25() -> Path:
    """Return the folder with a checkpoint of each of `CASES25`, written by nugraph 25.4."""
    folder = tempfile.TemporaryDirectory(prefix="numl-test-nugraph25-")
    _FOLDERS.append(folder)
    for name, arguments in CASES25.items():
        number = server().ask("make", gain=1, seed=0, events=[], graph={}, **arguments)
        server().ask("normalise", model=number)
        server().ask("save", model=number, path=str(Path(folder.name, f"{name}.ckpt")))
    return Path(folder.name)


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
