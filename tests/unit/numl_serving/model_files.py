"""Make checkpoints and model directories for tests, and read the real event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numl_serving.event import Event
from numl_serving.golden import Golden, write_golden
from numl_serving.graph import build_graph
from numl_serving.importer import Report, Request, import_checkpoint
from oracle import NORMALISATION, answer, random_event, reference
from torch import nn

CHECKOUT = Path(__file__).resolve().parents[3]

REAL_CHECKPOINT = "nugraph3_hierarchical.ckpt"
REAL_EVENT = "uboone_event_189hits.h5"
REAL_ANSWER = "uboone_event_189hits.nugraph3_expected.npz"

REAL_NORM = {
    "u": {
        "mean": [389.42752, 172.90794, 147.81108, 4.5563765],
        "std": [147.1627, 78.01324, 228.31424, 2.2156637],
    },
    "v": {
        "mean": [368.83023, 173.01247, 154.14513, 4.449338],
        "std": [145.29645, 80.54078, 282.34027, 1.8969047],
    },
    "y": {
        "mean": [546.2973, 172.77615, 116.974, 4.1647816],
        "std": [283.47656, 73.99135, 115.49256, 1.4615369],
    },
}
"""The feature normalisation of the real weights, which their checkpoint does not hold."""


def real_event(real_data: Path) -> Event:
    """Read the real event."""
    with h5py.File(real_data / REAL_EVENT) as file:
        hits, spacepoints = file["hit_table"], file["spacepoint_table"]
        tensors = {
            f"hit_table_{name}": hits[name][:, 0]
            for name in ("hit_id", "local_plane", "local_time", "local_wire", "integral", "rms")
        }
        tensors["spacepoint_table_spacepoint_id"] = spacepoints["spacepoint_id"][:, 0]
        for axis, plane in enumerate("uvy"):
            tensors[f"spacepoint_table_hit_id_{plane}"] = spacepoints["hit_id"][:, axis]
    return Event.from_tensors(tensors)


def norm_file(folder: Path, content: Any = None) -> Path:
    """Write a normalisation as JSON, by default that of the reference models."""
    path = folder / "norm.json"
    default = {p: {"mean": n.mean, "std": n.std} for p, n in NORMALISATION.items()}
    path.write_text(json.dumps(default if content is None else content))
    return path


def checkpoint_of(state: dict[str, Any], folder: Path, **changes: Any) -> Path:
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


def model_directory(kind: str, folder: Path, seed: int = 0) -> Path:
    """Import a reference model, with a golden answer by the reference itself."""
    model = reference(kind, seed)
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "imported"
    import_reference(kind, model, folder, out)
    event = random_event(np.random.default_rng(1), 120)
    outputs = answer(model, build_graph(event))
    write_golden(out / "golden.npz", Golden(event, outputs))
    return out


def import_reference(kind: str, model: nn.Module, folder: Path, out: Path, **more: Any) -> Report:
    """Import a reference model."""
    changes: dict[str, Any] = {}
    if kind == "per-plane":
        changes = {"semantic_classes": list("abcdefg"), "event_classes": list("abcd")}
    return import_checkpoint(
        Request(
            checkpoint=checkpoint_of(model.state_dict(), folder, **changes),
            architecture="nugraph2" if kind == "nugraph2" else "nugraph3",
            out=out,
            norm=norm_file(folder),
            **more,
        )
    )
