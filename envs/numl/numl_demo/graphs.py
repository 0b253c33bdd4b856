"""Simulated events as the graphs NuGraph trains on, made by pynuml and nugraph themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
import torch
from nugraph.util import (
    EventLabels,
    FeatureNorm,
    FeatureNormMetric,
    HierarchicalEdges,
    PositionFeatures,
)
from pynuml.io import Event
from pynuml.labels import FlavorLabels, SimpleLabels, StandardLabels
from pynuml.process import HitGraphProducer
from torch_geometric.data import HeteroData

from .geometry import PLANES
from .simulate import SimulatedEvent, Table

Norm = dict[str, torch.Tensor]

# how pynuml.io.File names the columns of a dataset that is wider than one
_WIDE: Final[Mapping[str, tuple[str, ...]]] = {
    "event_table/nu_dir": ("nu_dir_x", "nu_dir_y", "nu_dir_z"),
    "event_table/nu_vtx": ("nu_vtx_x", "nu_vtx_y", "nu_vtx_z"),
    "event_table/nu_vtx_corr": ("nu_vtx_corr_x", "nu_vtx_corr_y", "nu_vtx_corr_z"),
    "spacepoint_table/hit_id": ("hit_id_u", "hit_id_v", "hit_id_y"),
    "spacepoint_table/position": ("position_x", "position_y", "position_z"),
}


@dataclass(frozen=True, slots=True)
class Labels:
    """The classes a model learns: pynuml's labelling and whether of the event, too."""

    semantic: Callable[[], StandardLabels]
    event: bool

    @property
    def semantic_classes(self) -> tuple[str, ...]:
        """Return the names of the hit classes, without pynuml's last one, `invisible`."""
        return tuple(self.semantic().labels[:-1])

    @property
    def event_classes(self) -> tuple[str, ...]:
        """Return the names of the event classes; none where the model has no event head."""
        return tuple(FlavorLabels().labels) if self.event else ()


NUGRAPH2_LABELS: Final = Labels(SimpleLabels, event=False)
NUGRAPH3_LABELS: Final = Labels(StandardLabels, event=True)


def _concrete(transform: Any) -> Any:
    """Return nugraph's transform as PyG 2.4 and later want it: with a `forward`."""
    return type(transform.__name__, (transform,), {"forward": transform.__call__})


class _Columns:
    """What a pynuml processor asks of its file, without the file: events come from memory."""

    def add_group(self, group: str, keys: list[str] | None = None) -> None:
        """Take note of nothing: every column is at hand."""


def pynuml_event(event: SimulatedEvent) -> Event:
    """Return the event as pynuml's file reader would."""
    frames = {name: _frame(name, table) for name, table in event.tables.items()}
    return Event(0, np.array(event.event_id), frames)


def _frame(name: str, table: Table) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for key, values in table.items():
        width = values.shape[1]
        wide = _WIDE.get(f"{name}/{key}", tuple(f"{key}_{i}" for i in range(width)))
        for i, column in enumerate(wide if width > 1 else (key,)):
            columns[column] = values[:, i]
            if values.dtype.kind == "O":  # text: bytes where it was read from a file
                texts = values[:, i].tolist()
                columns[column] = [t.decode() if isinstance(t, bytes) else t for t in texts]
    return pd.DataFrame(columns)


def make_graphs(events: Iterable[SimulatedEvent], labels: Labels) -> list[HeteroData]:
    """Return pynuml's graphs of the events, raw features, without those pynuml drops.

    Spacepoint positions are set to zero: the server's inputs carry none, so what a model would
    learn from them would be missing when it is served.
    """
    producer = HitGraphProducer(
        file=_Columns(),
        semantic_labeller=labels.semantic(),
        event_labeller=FlavorLabels() if labels.event else None,
        label_vertex=labels.event,
    )
    graphs = []
    for event in events:
        _, data = producer(pynuml_event(event))
        if data is None:
            continue
        count = len(event.tables["spacepoint_table"]["spacepoint_id"])
        data["sp"].pos = torch.zeros(count, 3)
        del data["metadata"]
        graphs.append(data)
    return graphs


def feature_norm(graphs: Iterable[HeteroData]) -> Norm:
    """Return nugraph's feature statistics per plane: f32[2, 4], mean and standard deviation."""
    metrics = {plane: FeatureNormMetric(4) for plane in PLANES}
    features = _concrete(PositionFeatures)(list(PLANES))
    for graph in graphs:
        positioned = features(graph.clone())
        for plane, metric in metrics.items():
            metric.update(positioned[plane].x)
    return {plane: metric.compute() for plane, metric in metrics.items()}


def prepare(graphs: Iterable[HeteroData], norm: Norm) -> list[HeteroData]:
    """Return the graphs as nugraph's data module feeds them to a model."""
    planes = list(PLANES)
    steps = [
        _concrete(PositionFeatures)(planes),
        _concrete(FeatureNorm)(planes, norm),
        _concrete(HierarchicalEdges)(planes),
    ]
    labels = _concrete(EventLabels)()
    prepared = []
    for graph in graphs:
        data = graph.clone()
        for step in steps:
            data = step(data)
        if "y" in data["evt"]:
            data = labels(data)
        prepared.append(data)
    return prepared
