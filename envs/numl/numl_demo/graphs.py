"""Simulated events as graphs for training, built by pynuml itself."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pynuml.labels import FlavorLabels, SimpleLabels, StandardLabels
from pynuml.process import HitGraphProducer
from torch_geometric.data import HeteroData

from .simulate import SimulatedEvent, Table

COLUMNS: Final = ("integral", "rms")
"""Columns of the hit table that a model learns from, beside plane, wire and time."""

POSITION_SCALE: Final = (0.3, 0.055)
"""Scale of wire and time in the graphs, to centimetres; pynuml 25.4.0 no longer applies it."""

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
    """What a model learns: pynuml's hit labels, and whether it classifies the event."""

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


class Columns(dict[str, Any]):
    """What pynuml's producer uses of a file (add_group) and of an event (tables, name, id)."""

    event_id: tuple[int, int, int] = (1, 1, 1)
    name = "event"

    def add_group(self, group: str, keys: list[str] | None = None) -> None:
        """Do nothing: all columns are in memory."""


def request_event(tensors: Mapping[str, NDArray[Any]]) -> Columns:
    """Return a request's tensors as pynuml's event: a table of hits and one of spacepoints."""
    tables: dict[str, dict[str, Any]] = {"hit_table": {}, "spacepoint_table": {}}
    for table, columns in tables.items():
        prefix = f"{table}_"
        columns |= {n.removeprefix(prefix): a for n, a in tensors.items() if n.startswith(prefix)}
    return Columns({table: pd.DataFrame(columns) for table, columns in tables.items()})


def pynuml_event(event: SimulatedEvent) -> Columns:
    """Return the event as pynuml's file reader does: a data frame per table."""
    return Columns({name: _frame(name, table) for name, table in event.tables.items()})


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


def scale_positions(event: Columns, scale: tuple[float, float]) -> None:
    """Scale wire and time in an event's tables; a factor of 1 changes nothing."""
    hits = event["hit_table"]
    for column, factor in zip(("local_wire", "local_time"), scale, strict=True):
        if factor != 1:
            hits[column] = hits[column].astype(np.float32) * np.float32(factor)


def make_graphs(events: Iterable[SimulatedEvent], labels: Labels) -> list[HeteroData]:
    """Return pynuml 25.4.0's graphs of the events, without those it drops.

    Positions are scaled as in first-generation graphs, so that distances along wires and time are
    comparable and neighbours in the graph are neighbours in the detector.
    """
    producer = _producer(labels, node_feats=list(COLUMNS))
    graphs = []
    for event in events:
        tables = pynuml_event(event)
        scale_positions(tables, POSITION_SCALE)
        _, data = producer(tables)
        if data is not None:
            graphs.append(data)
    return graphs


def write_graphs(path: Path, events: Iterable[SimulatedEvent], labels: Labels) -> int:
    """Write a processed graph file by pynuml 25.4.0, all events in the split ``test``.

    Args:
        path: The file, which appears only when it is complete; replaced if it exists.
        events: The events; pynuml drops those with few hits in a plane.
        labels: What the graphs hold as truth.

    Returns:
        The number of events written.

    Raises:
        OSError: The file cannot be written; nothing is left behind.
    """
    producer, names = _producer(labels), []
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        with h5py.File(temporary, "w") as file:
            for event in events:
                tables = pynuml_event(event)
                tables.event_id = event.event_id
                tables.name = "r{}_sr{}_evt{}".format(*event.event_id)
                name, data = producer(tables)
                if data is not None:
                    data.save(file, f"dataset/{name}")
                    names.append(name)
            for key, value in producer.metadata.items():
                file[key] = value
            file["samples/test"] = names
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return len(names)


def _producer(labels: Labels, **settings: Any) -> HitGraphProducer:
    return HitGraphProducer(
        Columns(),
        semantic_labeller=labels.semantic(),
        event_labeller=FlavorLabels() if labels.event else None,
        label_vertex=labels.event,
        **settings,
    )
