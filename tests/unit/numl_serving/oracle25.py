"""Models to compare with nugraph 25.4.0 and pynuml 25.4.0, which run in a process of their own.

NUGRAPH25 names the folder in which their two wheels are unpacked.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from edge_orders import ORDERS
from numl_demo.graphs import COLUMNS, Columns, pynuml_event, request_event
from numl_demo.simulate import SimulatedEvent
from numl_serving.event import Event
from numl_serving.native import NativeModel
from numl_serving.recognition import is_served, recognise
from numpy.typing import NDArray

from numl_formats.card import ModelCard, Source, WeightsFile
from numl_formats.cardfile import read_card
from numl_formats.contract import Schema

SERVER = Path(__file__).resolve().parent / "nugraph25_server.py"

Arrays = Mapping[str, NDArray[Any]]

SEMANTIC_CLASSES = ["MIP", "HIP", "shower", "michel", "diffuse", "invisible", "background"]
EVENT_CLASSES = ["numu", "nue", "nutau", "nc"]


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

    @property
    def schema(self) -> Schema:
        """The columns of a request."""
        return Schema.of(self.planes, self.columns, positions=False)

    def arguments(self) -> dict[str, Any]:
        """Return what nugraph's own model is made with, every head and its default widths."""
        sizes: dict[str, Any] = {
            "in_features": len(self.features),
            "planes": list(self.planes),
            "semantic_classes": SEMANTIC_CLASSES,
        }
        if self.kind == "nugraph2":
            return sizes
        heads = {f"{head}_head": True for head in ("event", "vertex", "instance", "spacepoint")}
        return sizes | heads | {"event_classes": EVENT_CLASSES}

    def graph(self) -> dict[str, Any]:
        """Return how an event becomes a graph."""
        return {"node_feats": list(self.columns), "generation": self.generation}


class Model25:
    """One of nugraph 25.4's own models, in the other process.

    Attributes:
        layout: What it is made for.
        card: Its card, as the importer would make it.
        weights: Its weights, as the importer would write them.
        exact: The same in float64: not rounded after the feature normalisation went into them.
    """

    def __init__(self, server: Server, number: int, layout: Layout) -> None:
        self._server, self._number = server, number
        self.layout = layout
        state = {n: a for n, a in server.ask("state", model=number).items() if is_served(n)}
        shapes = {name: array.shape for name, array in state.items()}
        found = recognise(shapes, layout.kind, layout.planes)
        self.weights, self.exact = found.weights(state), found.weights(state, np.float64)
        self.card = ModelCard(
            network=found.network,
            planes=layout.planes,
            hit_features=layout.features,
            position_scale=(0.3, 0.055) if layout.generation == 1 else (1.0, 1.0),
            spacepoint_positions=False,
            normalisation=None,
            heads=found.heads,
            clustering=found.clustering,
            weights=WeightsFile("weights.safetensors", "0" * 64),
            source=Source("model.ckpt", "0" * 64),
        )

    def answer(self, event: Event) -> Arrays:
        """Answer an event in float64; returns arrays by output name."""
        return self._answers(event, True)[0]

    def exact_and_rounded(self, event: Event) -> tuple[Arrays, Iterator[Arrays]]:
        """Answer an event in float64, and in float32, each time rounded otherwise."""
        exact, single = self._answers(event, True, False)
        others = (self._answers(event, False, order=order)[0] for order in range(1, ORDERS))
        return exact, chain([single], others)

    def _answers(self, event: Event, *doubles: bool, order: int = 0) -> list[Arrays]:
        found: list[Arrays] = self._server.ask(
            "answer",
            model=self._number,
            event=request_event(event.tensors()),
            doubles=doubles,
            order=order,
            graph=self.layout.graph(),
        )
        return found

    @cached_property
    def native(self) -> NativeModel:
        """The native library's network with its weights."""
        return NativeModel(self.card, self.weights)

    def save(self, path: Path) -> Path:
        """Write it as Lightning writes a checkpoint."""
        self._server.ask("save", model=self._number, path=str(path))
        return path


@cache
def server() -> Server:
    """Return the process that all tests share: its imports take seconds."""
    return Server()


class Server:
    """The process with nugraph 25.4.0.

    It needs NUGRAPH25 in the environment.
    """

    def __init__(self) -> None:
        named = "NUGRAPH25" in os.environ
        assert named, "NUGRAPH25 must name the folder with nugraph 25.4 (scripts/test makes it)"
        self._process = subprocess.Popen(
            [sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        atexit.register(self._process.communicate, timeout=60)

    def ask(self, command: str, **arguments: Any) -> Any:
        """Run a command of ``nugraph25_server.py``."""
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
        """Make a model with random weights, and the feature normalisation of ``events``.

        The weights are larger by ``gain`` than those a training starts from.
        """
        tables = [request_event(event.tensors()) for event in events]
        return self._new("make", layout, tables, gain=gain, seed=seed)

    def train(
        self, layout: Layout, events: Sequence[SimulatedEvent], steps: int, seed: int
    ) -> Model25:
        """Train a model by Lightning on simulated events, for three planes."""
        tables = [pynuml_event(event) for event in events]
        return self._new("train", layout, tables, steps=steps, seed=seed)

    def load(self, folder: Path) -> Model25:
        """Load the weights of a model folder that `scripts/train_demo.py` wrote."""
        layout = Layout(
            read_card(folder / "model.json").network.kind, columns=COLUMNS, generation=1
        )
        return Model25(self, self.ask("load", folder=str(folder)), layout)

    def _new(self, command: str, layout: Layout, events: list[Columns], **more: Any) -> Model25:
        arguments = {"kind": layout.kind, "events": events, "graph": layout.graph()}
        number = self.ask(command, **arguments, **more, **layout.arguments())
        return Model25(self, number, layout)


def simulated(event: SimulatedEvent, schema: Schema) -> Event:
    """Return a simulated event as a request of it."""
    columns = {
        f"{table}_{name}": column
        for table, frame in pynuml_event(event).items()
        for name, column in frame.items()
    }
    tensors = [tensor for tensor in schema.tensors if not tensor.optional]
    return Event.from_tensors(
        {t.name: np.ascontiguousarray(columns[t.name], t.dtype) for t in tensors}, schema
    )
