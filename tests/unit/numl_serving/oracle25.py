"""Models to compare with nugraph 25.4.0 and pynuml 25.4.0, which run in a process of their own.

NUGRAPH25 names a folder in which their two wheels are unpacked, for instance by
``pip install --no-deps --target FOLDER nugraph==25.4.0 pynuml==25.4.0``.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numl_demo.simulate import SimulatedEvent
from numl_serving.event import Event
from numl_serving.modelcard import (
    Clustering,
    Head,
    ModelCard,
    NetworkSpec,
    Source,
    WeightsFile,
)
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent / "nugraph25"

Arrays = Mapping[str, NDArray[Any]]
Tables = dict[str, dict[str, NDArray[Any]]]

_WIDE = {
    "hit_id": ("hit_id_u", "hit_id_v", "hit_id_y"),
    "position": ("position_x", "position_y", "position_z"),
    "nu_vtx_corr": ("nu_vtx_corr_x", "nu_vtx_corr_y", "nu_vtx_corr_z"),
}
"""How pynuml names the columns of a dataset that is wider than one."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a model of nugraph 25.4 is made for.

    Attributes:
        kind: nugraph3 or nugraph2.
        planes: Names of the planes.
        columns: pynuml's ``node_feats``, columns of the hit table.
        generation: Of the graphs: 1 as pynuml 24.7.1 writes them, 2 as 25.4.0 does.
    """

    kind: str = "nugraph3"
    planes: tuple[str, ...] = ("u", "v", "y")
    columns: tuple[str, ...] = ("integral", "rms", "tpc")
    generation: int = 2

    @property
    def features(self) -> tuple[str, ...]:
        """The hit features by the names of the model card."""
        added: tuple[str, ...] = ("local_plane", "local_wire", "local_time")
        if self.generation == 1:
            added = ("local_plane",) if self.kind == "nugraph3" else ()
        return ("wire_position", "time_position", *self.columns, *added)

    def card(self, **widths: int) -> ModelCard:
        """Return the card of the model with every head, by default in nugraph's own widths."""
        nugraph3 = self.kind == "nugraph3"
        probabilities = "softmax" if nugraph3 else "none"
        classes = ("MIP", "HIP", "shower", "michel", "diffuse", "rest", "background")
        events = ("numu", "nue", "nutau", "nc")
        heads = [
            Head("semantic", "x_semantic", "hit", len(classes), probabilities, classes),
            Head("filter", "x_filter", "hit", 1, "sigmoid"),
        ]
        if nugraph3:
            heads += [
                Head("event", "e", "event", len(events), "softmax", events),
                Head("vertex", "v", "event", 3),
                Head("instance_beta", "of", "hit", 1, "sigmoid"),
                Head("instance", "ox", "hit", 8),
                Head("spacepoint", "x_position", "hit", 3),
            ]
        sizes = {"hit_width": 128, "nexus_width": 32, "event_width": 32, "classes": 1}
        if not nugraph3:
            sizes = {"hit_width": 64, "nexus_width": 16, "event_width": 0, "classes": len(classes)}
        return ModelCard(
            network=NetworkSpec(
                kind=self.kind,
                generation="25.4",
                iterations=5,
                nexus_start="zeros",
                nexus="joint" if nugraph3 else "concat",
                **(sizes | widths),
            ),
            planes=self.planes,
            hit_features=self.features,
            position_scale=(0.3, 0.055) if self.generation == 1 else (1.0, 1.0),
            spacepoint_positions=False,
            normalisation=None,
            heads=tuple(heads),
            clustering=(
                Clustering("x_i", "ox", 0.5, 5, "x_filter", "x_semantic", 6) if nugraph3 else None
            ),
            weights=WeightsFile("weights.safetensors", "0" * 64),
            source=Source("model.ckpt", "0" * 64),
        )

    def arguments(self) -> dict[str, Any]:
        """Return what nugraph's own model is made with."""
        card = self.card()
        spec, classes = card.network, {head.name: head.classes for head in card.heads}
        sizes: dict[str, Any] = {
            "in_features": len(self.features),
            "nexus_features": spec.nexus_width,
            "planes": list(self.planes),
            "semantic_classes": list(classes["semantic"] or ()),
            "num_iters": spec.iterations,
        }
        if self.kind == "nugraph2":
            return sizes | {"planar_features": spec.hit_width}
        every = {f"{head}_head": True for head in ("event", "vertex", "instance", "spacepoint")}
        return (
            sizes
            | every
            | {
                "hit_features": spec.hit_width,
                "interaction_features": spec.event_width,
                "event_classes": list(classes["event"] or ()),
            }
        )

    def graph(self) -> dict[str, Any]:
        """Return how an event becomes a graph."""
        return {"node_feats": list(self.columns), "generation": self.generation}


class Model25:
    """One of nugraph 25.4's own models, in the other process.

    Attributes:
        layout: What it is made for.
        state: Its state dict.
    """

    def __init__(self, server: Server, number: int, layout: Layout) -> None:
        self._server, self._number = server, number
        self.layout = layout
        self.state: Arrays = server.ask("state", model=number)

    def answer(self, event: Event, *, double: bool = True, old_names: bool = True) -> Arrays:
        """Answer an event in float64 or float32; returns arrays by output name.

        Args:
            event: The event.
            double: Whether to compute in float64.
            old_names: Whether hits have the columns ``local_plane``, ``local_wire`` and
                ``local_time``, or ``view``, ``proj`` and ``drift``.
        """
        tables = event_tables(event)
        if not old_names:
            names = {"local_plane": "view", "local_wire": "proj", "local_time": "drift"}
            hits = tables["hit_table"]
            tables["hit_table"] = {names.get(name, name): hits[name] for name in hits}
        found: Arrays = self._server.ask(
            "answer", model=self._number, tables=tables, double=double, graph=self.layout.graph()
        )
        return found

    def save(self, path: Path) -> Path:
        """Write it as Lightning writes a checkpoint."""
        self._server.ask("save", model=self._number, path=str(path))
        return path


class Server:
    """The process with nugraph 25.4.0.

    Args:
        folder: Where its wheels are unpacked.
    """

    def __init__(self, folder: Path) -> None:
        path = os.pathsep.join(map(str, (folder, HERE / "stand_ins")))
        self._process = subprocess.Popen(
            [sys.executable, HERE / "server.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate(timeout=60)

    def ask(self, command: str, **arguments: Any) -> Any:
        """Run a command of ``nugraph25/server.py``."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        pickle.dump((command, arguments), process.stdin)
        process.stdin.flush()
        worked, result = pickle.load(process.stdout)
        if not worked:
            raise RuntimeError(f"nugraph 25.4.0: {result}")
        return result

    def make(self, layout: Layout, events: Sequence[Event], gain: float, seed: int) -> Model25:
        """Make a model with random weights.

        Args:
            layout: What it is for.
            events: What its feature normalisation comes from.
            gain: How much larger the weights are than those a training starts from.
            seed: Of the weights.
        """
        number = self.ask(
            "make",
            kind=layout.kind,
            gain=gain,
            seed=seed,
            events=[event_tables(event) for event in events],
            graph=layout.graph(),
            **layout.arguments(),
        )
        return Model25(self, number, layout)

    def train(
        self, layout: Layout, events: Sequence[SimulatedEvent], steps: int, seed: int
    ) -> Model25:
        """Train a model by Lightning on simulated events."""
        number = self.ask(
            "train",
            kind=layout.kind,
            steps=steps,
            seed=seed,
            events=[_simulated_tables(event) for event in events],
            graph=layout.graph(),
            **layout.arguments(),
        )
        return Model25(self, number, layout)


def event_tables(event: Event) -> Tables:
    """Return an event's columns by table, as pynuml names them."""
    tensors = event.tensors().items()
    return {
        table: {n.removeprefix(f"{table}_"): a for n, a in tensors if n.startswith(table)}
        for table in ("hit_table", "spacepoint_table")
    }


def canonical(model: Model25) -> dict[str, NDArray[np.float64]]:
    """Return a model's weights under the names of `numl_serving.modelcard.weight_shapes`."""
    state = {name: np.asarray(array, np.float64) for name, array in model.state.items()}
    convert = _nugraph2 if model.layout.kind == "nugraph2" else _nugraph3
    return convert(state, model.layout)


def _nugraph3(state: Arrays, layout: Layout) -> dict[str, NDArray[np.float64]]:
    weights: dict[str, NDArray[np.float64]] = {}

    def take(name: str, *layers: str, planes: bool = True) -> None:
        for kind in ("weight", "bias"):
            arrays = [state[f"{layer}.{kind}"] for layer in layers]
            if name.endswith(".gate"):
                arrays = [array[0] for array in arrays]
            weights[f"{name}.{kind}"] = np.stack(arrays) if planes else arrays[0]

    take("encoder", "encoder.planar_net")
    _fold(weights, "encoder", *(state[f"encoder.input_norm.norm.{n}"] for n in ("mean", "var")))
    blocks = {
        "planar": "plane_net",
        "up": "plane_to_nexus",
        "to_event": "nexus_to_interaction",
        "from_event": "interaction_to_nexus",
        "down": "nexus_to_plane",
    }
    parts = {"gate": "edge_net.0", "hidden": "net.0", "output": "net.2"}
    for name, block in blocks.items():
        for part, layer in parts.items():
            take(f"{name}.{part}", f"core_net.{block}.{layer}", planes="event" not in name)
    take("heads.semantic", "semantic_decoder.net")
    take("heads.filter", "filter_decoder.net")
    take("heads.event", "event_decoder.net", planes=False)
    take("heads.vertex", "vertex_decoder.net", planes=False)
    take("heads.instance_beta", "instance_decoder.beta_net")
    take("heads.instance", "instance_decoder.coord_net")
    take("heads.spacepoint", *(f"spacepoint_decoder.net.{p}" for p in range(len(layout.planes))))
    return weights


def _nugraph2(state: Arrays, layout: Layout) -> dict[str, NDArray[np.float64]]:
    spec = layout.card().network
    classes, width = spec.classes, spec.hit_width
    weights: dict[str, NDArray[np.float64]] = {}

    def stacked(layer: str, kind: str) -> NDArray[np.float64]:
        return np.stack([state[f"{layer}.net.{c}.{kind}"] for c in range(classes)])

    for kind in ("weight", "bias"):
        layers = {"encoder": "encoder.net.{}.1"}
        for name, block in {
            "planar": "plane_net.net.{}",
            "down": "nexus_net.nexus_down.{}",
        }.items():
            layers[f"{name}.gate"] = f"{block}.edge_net.0"
            layers[f"{name}.hidden"] = f"{block}.node_net.0"
            layers[f"{name}.output"] = f"{block}.node_net.2"
        for name, layer in layers.items():
            array = np.stack([stacked(layer.format(plane), kind) for plane in layout.planes])
            weights[f"{name}.{kind}"] = array[:, :, 0] if name.endswith(".gate") else array
        weights[f"nexus.hidden.{kind}"] = stacked("nexus_net.nexus_net.0", kind)
        weights[f"nexus.output.{kind}"] = stacked("nexus_net.nexus_net.2", kind)
        weights[f"heads.filter.{kind}"] = np.stack(
            [state[f"filter_decoder.net.{plane}.0.{kind}"] for plane in layout.planes]
        )
        own = [stacked(f"semantic_decoder.net.{plane}", kind)[:, 0] for plane in layout.planes]
        if kind == "weight":
            # Each class has a layer of its own: a block of the whole.
            block = np.repeat(np.eye(classes), width, axis=1)
            own = [np.tile(array, classes) * block for array in own]
        weights[f"heads.semantic.{kind}"] = np.stack(own)
    # A trained model has the same normalisation once for each class, a new one has it once.
    norms = [
        np.stack(
            [
                np.broadcast_to(
                    state[f"encoder.net.{plane}.0.norm.{n}"], (classes, len(layout.features))
                )
                for plane in layout.planes
            ]
        )
        for n in ("mean", "var")
    ]
    _fold(weights, "encoder", *norms)
    return weights


def _fold(
    weights: dict[str, NDArray[np.float64]],
    name: str,
    mean: NDArray[np.float64],
    var: NDArray[np.float64],
) -> None:
    """Put nugraph's ``InputNorm`` into the layer that follows it."""
    weight = weights[f"{name}.weight"] / np.sqrt(var + 1e-5)[..., None, :]
    weights[f"{name}.weight"] = weight
    weights[f"{name}.bias"] = weights[f"{name}.bias"] - (weight * mean[..., None, :]).sum(-1)


def _simulated_tables(event: SimulatedEvent) -> Tables:
    tables: Tables = {}
    for table, columns in event.tables.items():
        found = tables.setdefault(table, {})
        for name, array in columns.items():
            names = _WIDE.get(name, ()) if array.shape[1] > 1 else (name,)
            for axis, each in enumerate(names):
                found[each] = array[:, axis]
    return tables
