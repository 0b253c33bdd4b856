"""Events of a processed graph file (``*.gnn.h5``), which pynuml writes for training.

``dataset/NAME`` is a compound scalar with a field for each tensor of an event's graph,
``samples/SPLIT`` lists names, ``planes``, ``semantic_classes`` and ``event_classes`` are text.
Graphs of the first generation (pynuml 24) have the hits of a plane in a store of its name, those
of the second (pynuml 25.4 and the main branch) all hits in ``hit``. Features are raw: nugraph
normalises them when it loads a graph. So an event can be had back, but for what the producer's
settings decide and the file does not tell: the columns are told by their number, the scale of
first-generation positions is pynuml's default.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from deploy.events.files import (
    ALWAYS,
    EventFile,
    Events,
    EventTensors,
    convert,
    kind_of,
    one_line,
    open_hdf5,
)
from deploy.events.grouping import EventId
from deploy.events.tables import EventFileError
from deploy.events.truth import Truth
from numl_formats.contract import HIT_ID, HITS, INPUTS, PLANE, SPACEPOINTS, TIME, WIRE, planes_of

Array = NDArray[Any]

_GRAPHS = "dataset"
_NAME = re.compile(r"r(\d{1,18})_sr(\d{1,18})_evt(\d{1,18})")  # what int64 holds
# HitGraphProducer's pos_norm, which it multiplies wire and time by (first generation).
_POSITION_SCALE = (np.float64(np.float32(0.3)), np.float64(np.float32(0.055)))
_WHOLE = 0.02  # how far a float32 position may leave a wire from a whole number
# By the number of a hit's features, HitGraphProducer's node_feats: its defaults.
_COLUMNS: Mapping[str, Mapping[int, tuple[str, ...]]] = {
    "first": {2: ("integral", "rms")},
    # Plane, wire and time follow them.
    "second": {5: ("integral", "rms"), 6: ("integral", "rms", "tpc")},
}
_NO_NEXUS = np.empty((3, 0), np.int64)


class GraphFile(Events):
    """A processed graph file.

    Events come in the order of the file, or of the split ``only``. Hits come plane by plane.
    """

    def __init__(
        self,
        path: Path,
        inputs: Mapping[str, str] = INPUTS,
        optional: Collection[str] = (),
        only: str | None = None,
    ) -> None:
        self._inputs, self._only = inputs, only
        self._optional = set(optional) - ALWAYS.keys()
        super().__init__(path)

    def _open(self) -> None:
        wanted = planes_of(self._inputs)
        self.planes = self._text("planes") or wanted
        self.semantic_classes = self._text("semantic_classes")
        self.event_classes = self._text("event_classes")
        self._names = self._chosen(self._only)
        self.event_ids = tuple(map(self._event_id, self._names))
        if self.planes != wanted:
            raise EventFileError(
                f"{self.path}: its graphs have the planes {', '.join(self.planes)}, "
                f"the model {', '.join(wanted)}"
            )

    def read(self, index: int) -> EventTensors:
        """Return the event ``index`` of ``event_ids``, with its hits plane by plane.

        EventFileError if its graph lacks something, or a part of it does not fit the others.
        """
        name, tensors = self._names[index], dict[str, Array]()
        with _whole_graph(where := self._where(name)):
            graph = self._graph(name)
            hits, nexus = self._hits(graph, where)
            there = hits | self._spacepoints(graph, nexus, where)
            for tensor, datatype in {**ALWAYS, **self._inputs}.items():
                kind = kind_of(datatype)
                if tensor in there:
                    tensors[tensor] = convert(there[tensor], kind, f"{where}: {tensor}")
                elif tensor not in self._optional and hits:
                    raise EventFileError(
                        f"{where} lacks {tensor}, which the model reads: "
                        "send the file that the graphs were made of"
                    )
                elif tensor not in self._optional:
                    tensors[tensor] = np.empty(0, kind)
        return EventTensors(self.event_ids[index], str(self.path), MappingProxyType(tensors))

    def truth(self, index: int) -> Truth:
        """Return the truth of an event, with its hits as `read` has them.

        EventFileError as of `read`, and for a truth that does not fit the hits.
        """
        name = self._names[index]
        with _whole_graph(where := self._where(name)):
            graph = self._graph(name)
            hits, _ = self._hits(graph, where, truth=True)
            event, vertex = graph.get("evt/y"), graph.get("evt/y_vtx")
            semantic = hits.get("y_semantic")
            return Truth(
                signal=None if semantic is None else semantic >= 0,
                semantic=semantic,
                instance=hits.get("y_instance"),
                event=None if event is None or event.size != 1 else _class_of(event.ravel()[0]),
                vertex=None if vertex is None or vertex.size != 3 else vertex.astype(float).ravel(),
            )

    def _where(self, name: str) -> str:
        return f"{self.path}: {_GRAPHS}/{name}"

    def _text(self, name: str) -> tuple[str, ...]:
        node = self._file.get(name)
        return tuple(np.ravel(node.asstr()[()]).tolist()) if isinstance(node, h5py.Dataset) else ()

    def _chosen(self, only: str | None) -> tuple[str, ...]:
        """Return the names of the graphs of a split, or of all."""
        graphs = self._file[_GRAPHS]
        if only is None:
            return tuple(graphs)
        names = self._text(f"samples/{only}")
        if not names:
            splits = ", ".join(self._file.get("samples", ())) or "none"
            raise EventFileError(
                f"{self.path} has no split {only} (it has {splits})",
                "nugraph's generate_samples makes the splits; --split all takes every event",
            )
        absent = [name for name in names if name not in graphs]
        if absent:
            raise EventFileError(f"{self.path}: no {_GRAPHS}/{absent[0]}, which {only} lists")
        return names

    def _event_id(self, name: str) -> EventId:
        """Return run, subrun and event: the name says them, and reading the graph is slow."""
        if told := _NAME.fullmatch(name):
            return int(told[1]), int(told[2]), int(told[3])
        graph, where = self._graph(name), self._where(name)
        with _whole_graph(where):
            run, subrun, event = (int(graph[f"metadata/{n}"]) for n in ("run", "subrun", "event"))
        return run, subrun, event

    def _graph(self, name: str) -> dict[str, Array]:
        where = self._where(name)
        try:
            node = self._file[f"{_GRAPHS}/{name}"]
            if not isinstance(node, h5py.Dataset) or node.shape != () or not node.dtype.names:
                raise EventFileError(f"{where} is not a graph as pynuml writes it")
            record = node[()]
        except (OSError, RuntimeError, KeyError) as error:
            raise EventFileError(f"{where} cannot be read: {one_line(error)}") from error
        return {name: np.asarray(record[name]) for name in node.dtype.names}

    def _hits(
        self, graph: Mapping[str, Array], where: str, *, truth: bool = False
    ) -> tuple[dict[str, Array], Array]:
        """Return the columns of the hits, plane by plane, and their `_nexus`.

        No columns for an event without hits; ``truth`` adds ``y_semantic`` and ``y_instance``,
        int64 ``[hits]``, where the graph has them.
        """
        if any(name.startswith("hit/") for name in graph):
            return self._second(graph, where, truth=truth)
        planes = [
            self._first(graph, number, plane, where, truth=truth)
            for number, plane in enumerate(self.planes)
            if np.ndim(graph.get(f"{plane}/pos", 0)) == 2
        ]
        if not planes:
            return {}, _NO_NEXUS
        columns, edges = zip(*planes, strict=True)
        shared = [name for name in columns[0] if all(name in each for each in columns)]
        hits = {name: np.concatenate([each[name] for each in columns]) for name in shared}
        return hits, np.concatenate(edges, axis=1)

    def _first(
        self, graph: Mapping[str, Array], number: int, plane: str, where: str, *, truth: bool
    ) -> tuple[dict[str, Array], Array]:
        """Return what `_hits` does for a plane of a first-generation graph."""
        position = graph[f"{plane}/pos"].astype(np.float64)
        wire, time = (position[:, i] / _POSITION_SCALE[i] for i in (0, 1))
        if (np.abs(wire - np.rint(wire)) > _WHOLE).any():
            raise EventFileError(
                f"{where}: the positions in plane {plane} are not wires times "
                f"{_POSITION_SCALE[0]:.1f}, pynuml's default, so the wires cannot be told: "
                "send the file that the graphs were made of"
            )
        hits = len(position)
        columns = {
            HIT_ID: _of_hits(graph, f"{plane}/id", hits),
            PLANE: np.full(hits, number),
            WIRE: np.rint(wire),
            TIME: time,
            **_features("first", graph, f"{plane}/x", hits, where),
        }
        for name in ("y_semantic", "y_instance"):
            if truth and f"{plane}/{name}" in graph:
                columns[name] = _labels_of_hits(graph, f"{plane}/{name}", hits)
        return columns, _nexus(graph, f"{plane}_nexus_sp", columns)

    def _second(
        self, graph: Mapping[str, Array], where: str, *, truth: bool
    ) -> tuple[dict[str, Array], Array]:
        """Return what `_hits` does for a second-generation graph."""
        position = graph["hit/pos"].astype(np.float64)
        if position.ndim != 2 or not len(position):
            return {}, _NO_NEXUS
        hits = len(position)
        columns = {
            HIT_ID: _of_hits(graph, "hit/id", hits),
            PLANE: _of_hits(graph, "hit/plane", hits),
            WIRE: position[:, 0],
            TIME: position[:, 1],
            **_features("second", graph, "hit/x", hits, where),
        }
        if truth and "hit/y_semantic" in graph:
            columns["y_semantic"] = _labels_of_hits(graph, "hit/y_semantic", hits)
        if truth and "hit_cluster-truth_particle-truth/edge_index" in graph:
            columns["y_instance"] = np.full(hits, -1)
            hit, particle = _edges(graph["hit_cluster-truth_particle-truth/edge_index"])
            columns["y_instance"][hit] = particle
        order = np.argsort(columns[PLANE], kind="stable")
        by_plane = {name: values[order] for name, values in columns.items()}
        return by_plane, _nexus(graph, "hit_nexus_sp", columns)

    def _spacepoints(
        self, graph: Mapping[str, Array], nexus: Array, where: str
    ) -> dict[str, Array]:
        """Return the spacepoint table: which hit of each plane has an edge to a spacepoint."""
        position = graph.get("sp/pos")
        if position is not None:
            count = len(position) if position.ndim == 2 else 0
        else:
            count = int(graph.get("sp/num_nodes", np.array(0)))
        table: dict[str, Array] = {"spacepoint_id": np.arange(count)}
        for number, name in enumerate(self.planes):
            ids = np.full(count, -1, dtype=np.int64)
            _, hit_id, spacepoint = nexus[:, nexus[0] == number]
            ids[spacepoint] = hit_id
            if (ids[spacepoint] != hit_id).any():
                raise EventFileError(
                    f"{where} has spacepoints with two hits in plane {name}, "
                    "which a request cannot say"
                )
            table[f"hit_id_{name}"] = ids
        if position is not None:
            axes = position if position.ndim == 2 else np.empty((0, 3))
            table |= {f"position_{axis}": axes[:, i] for i, axis in enumerate("xyz")}
        return {f"{SPACEPOINTS}_{name}": values for name, values in table.items()}


@contextmanager
def _whole_graph(where: str) -> Iterator[None]:
    """Raise EventFileError for what numpy says of a graph whose parts do not fit each other."""
    try:
        yield
    except (IndexError, KeyError, MemoryError, OverflowError, TypeError, ValueError) as error:
        raise EventFileError(f"{where} is not a whole graph: {one_line(error)}") from error


def is_graph_file(path: Path) -> bool:
    """Return whether a file holds graphs; False for what cannot be opened, too."""
    try:
        with open_hdf5(path) as file:
            return isinstance(file.get(_GRAPHS), h5py.Group) and HITS not in file
    except EventFileError:
        return False


def open_events(
    path: Path, inputs: Mapping[str, str] = INPUTS, optional: Collection[str] = ()
) -> Events:
    """Open a file of events, whichever kind it is."""
    try:
        return EventFile(path, inputs, optional)
    except EventFileError:
        if is_graph_file(path):
            return GraphFile(path, inputs, optional)
        raise


def _features(
    generation: str, graph: Mapping[str, Array], name: str, hits: int, where: str
) -> dict[str, Array]:
    """Return the columns of the hit table that the features of hits are."""
    features, known = _of_hits(graph, name, hits, dimensions=2), _COLUMNS[generation]
    if (count := features.shape[1]) not in known:
        usual = " or ".join(f"{number} ({', '.join(c)})" for number, c in known.items())
        raise EventFileError(
            f"{where}: its hits have {count} features, and a graph file does not name them; "
            f"{usual} can be told: send the file that the graphs were made of"
        )
    return {f"{HITS}_{column}": features[:, i] for i, column in enumerate(known[count])}


def _nexus(graph: Mapping[str, Array], edge: str, hits: Mapping[str, Array]) -> Array:
    """Return each edge's plane, ``hit_id`` and spacepoint, int64 ``[3, edges]``."""
    edges = _edges(graph.get(f"{edge}/edge_index"))
    of_hits = (hits[name][edges[0]] for name in (PLANE, HIT_ID))
    return np.stack((*of_hits, edges[1])).astype(np.int64)


def _of_hits(graph: Mapping[str, Array], name: str, hits: int, *, dimensions: int = 1) -> Array:
    """Return a tensor with a row for each hit; ValueError if it has other rows."""
    values = graph[name]
    if values.ndim != dimensions or len(values) != hits:
        raise ValueError(f"{name} has the shape {list(values.shape)} for {hits} hits")
    return values


def _labels_of_hits(graph: Mapping[str, Array], name: str, hits: int) -> Array:
    values = _of_hits(graph, name, hits)
    if values.dtype.kind not in "iu":
        raise ValueError(f"{name} is {values.dtype}, not integers")
    return values.astype(np.int64)


def _class_of(stored: Any) -> int:
    if stored != np.rint(stored):
        raise ValueError(f"evt/y is {stored}")
    return int(stored)


def _edges(stored: Array | None) -> Array:
    """Return edges ``[2, n]``; pynuml stores none as the scalar 0."""
    if stored is None or stored.ndim != 2:
        return np.empty((2, 0), dtype=np.int64)
    if len(stored) != 2:
        raise ValueError(f"edges of shape {list(stored.shape)}")
    if stored.size and stored.min() < 0:  # numpy would count it from the end
        raise ValueError(f"an edge from row {stored.min()}")
    return stored
