"""The native library, ``libnuml.so``: from an event's columns to its answer in one call.

It is compiled when the package is built (``envs/numl/native``), has a C interface, and is called
by ctypes, which releases Python's lock meanwhile.
"""

from __future__ import annotations

import ctypes
import importlib
import weakref
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numl_formats.card import (
    ACTIVATIONS,
    EMBEDDED_HEADS,
    EXTENSION_FEATURES,
    NEXUS_RULES,
    NODES,
    POSITION_FEATURES,
    Embedding,
    Head,
    ModelCard,
)
from numl_formats.contract import HITS, SPACEPOINTS
from numl_serving import interface
from numl_serving.answer import too_large
from numl_serving.errors import EventError, ModelFilesError
from numl_serving.event import Event, Int32Array
from numl_serving.shapes import check_weights

_EVENT_REFUSED, _NOT_FINITE = 1, 2
_ERROR_BYTES = 512


class NativeModel:
    """A network in the native library.

    Args:
        card: The model card.
        weights: float32 by the names of `numl_serving.shapes.weight_shapes`; copied.
        level: Instructions to use: 3 for x86-64-v3, 4 for x86-64-v4, 1 for those every processor
            has; 0: the best that this one has.

    Raises:
        ModelFilesError: The weights do not match the card.
    """

    def __init__(
        self, card: ModelCard, weights: Mapping[str, NDArray[np.float32]], *, level: int = 0
    ) -> None:
        check_weights(card, {name: array.shape for name, array in weights.items()})
        self.card = card
        spec = card.network
        arrays = {name: np.ascontiguousarray(a, np.float32) for name, a in weights.items()}
        mean, std = _normalisation(card)
        places = {head.output: index for index, head in enumerate(card.heads)}
        heads = (interface.Head * len(card.heads))(*(_head(card, head) for head in card.heads))
        table = (interface.Weight * len(arrays))(
            *(interface.Weight(n.encode(), a.ctypes.data, a.shape[0]) for n, a in arrays.items())
        )
        embedding = spec.embedding or Embedding(0, 0, 0)
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        handle = interface.library.numl_network_new(
            interface.Card(
                kind=3 if spec.kind == "nugraph3" else 2,
                nexus=NEXUS_RULES.index(spec.nexus),
                iterations=spec.iterations,
                planes=len(card.planes),
                features=len(card.hit_features),
                classes=spec.classes,
                hit_width=spec.hit_width,
                nexus_width=spec.nexus_width,
                event_width=spec.event_width,
                starts_from_position=spec.nexus_start == "position",
                embedding_layers=embedding.layers,
                embedding_width=embedding.width,
                embedding_hidden=embedding.hidden,
                mean=None if mean is None else mean.ctypes.data,
                std=None if std is None else std.ctypes.data,
                heads=len(heads),
                head=heads,
                clustering=_clustering(card, places),
                weights=len(table),
                weight=table,
                level=level,
            ),
            error,
            _ERROR_BYTES,
        )
        if not handle:
            raise ModelFilesError(error.value.decode())
        self._handle = handle
        weakref.finalize(self, interface.library.numl_network_free, handle)

    @property
    def level(self) -> int:
        """The instruction level it runs at."""
        return int(interface.library.numl_network_level(self._handle))

    def infer(self, event: Event) -> dict[str, NDArray[Any]]:
        """Answer an event; see `timed`."""
        return self.timed(event)[0]

    def timed(self, event: Event) -> tuple[dict[str, NDArray[Any]], float]:
        """Answer an event.

        Returns:
            Every tensor of the card's outputs, by name: ``[hits in plane, width]``, or ``[hits in
            plane]`` of a scalar head; ``[1, width]`` of a head on the event. The rows of a plane
            are in the order of its hits in the event. And the seconds that the graph took.

        Raises:
            EventError: The event is too large, its ids would expand into too many edges, or its
                numbers are too large for float32.
        """
        card = self.card
        planes = len(card.planes)
        rows = np.bincount(event.hit("local_plane"), minlength=planes).tolist()
        outputs: dict[str, NDArray[Any]] = {}
        pointers = (c_void_p * (len(card.heads) * planes))()
        for index, head in enumerate(card.heads):
            if head.node == "event":
                array = np.empty((1, head.width), np.float32)
                outputs[f"{head.output}_evt"] = array
                pointers[index * planes] = array.ctypes.data
                continue
            for plane, name in enumerate(card.planes):
                shape = (rows[plane],) if head.is_scalar else (rows[plane], head.width)
                array = np.empty(shape, np.float32)
                outputs[f"{head.output}_{name}"] = array
                pointers[index * planes + plane] = array.ctypes.data
        clusters = (c_void_p * planes)()
        if card.clustering is not None:
            for plane, name in enumerate(card.planes):
                labels = np.empty(rows[plane], np.int32)
                outputs[f"{card.clustering.output}_{name}"] = labels
                clusters[plane] = labels.ctypes.data
        columns = event_columns(event, card.hit_features, card.position_scale)
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        graph_s = c_double()
        status = interface.library.numl_infer(
            self._handle, columns, pointers, clusters, graph_s, error, _ERROR_BYTES
        )
        if status == _NOT_FINITE:
            raise EventError(too_large(event))
        _check(status, error)
        return outputs, graph_s.value


def event_columns(
    event: Event, features: Sequence[str], position_scale: tuple[float, float]
) -> interface.Event:
    """Return an event as the library reads it; valid as long as the event is."""
    scales = dict(zip(POSITION_FEATURES, position_scale, strict=True))
    columns = {"wire_position": "local_wire", "time_position": "local_time"}
    table = (interface.Feature * len(features))()
    for index, feature in enumerate(features):
        if feature in EXTENSION_FEATURES:
            table[index] = interface.Feature(None, 2 + EXTENSION_FEATURES.index(feature), 1.0)
            continue
        column = event.hit(columns.get(feature, feature))
        table[index] = interface.Feature(
            column.ctypes.data, column.dtype == np.int32, scales.get(feature, 1.0)
        )
    ids = [event.columns[f"{SPACEPOINTS}_hit_id_{plane}"] for plane in event.schema.planes]
    position = None
    if event.has_positions:
        axes = [event.columns[f"{SPACEPOINTS}_position_{axis}"].ctypes.data for axis in "xyz"]
        position = (c_void_p * 3)(*axes)
    return interface.Event(
        planes=len(event.schema.planes),
        hits=event.num_hits,
        spacepoints=event.num_spacepoints,
        features=len(features),
        hit_id=event.columns[f"{HITS}_hit_id"].ctypes.data,
        plane=event.columns[f"{HITS}_local_plane"].ctypes.data,
        wire=event.columns[f"{HITS}_local_wire"].ctypes.data,
        time=event.columns[f"{HITS}_local_time"].ctypes.data,
        wire_scale=position_scale[0],
        time_scale=position_scale[1],
        feature=table,
        spacepoint_hit_id=(c_void_p * len(ids))(*(column.ctypes.data for column in ids)),
        position=position,
    )


def graph_lists(
    columns: interface.Event,
) -> tuple[list[NDArray[np.int32]], list[NDArray[np.float32]]]:
    """Build only the graph; return copies of its lists.

    Returns:
        ``first``, ``row``, ``edge_offsets``, ``edge_source``, ``up_offsets`` and ``up_hit``, as
        ``native/graph.h`` describes them; and the features and positions, flat.

    Raises:
        EventError: The event's ids would expand into too many edges.
    """
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    handle = interface.library.numl_graph_new(columns, error, _ERROR_BYTES)
    if not handle:
        raise EventError(error.value.decode())
    data = c_void_p()

    def copied(size: int, kind: Any, dtype: Any) -> NDArray[Any]:
        if not size:
            return np.empty(0, dtype)
        return np.ctypeslib.as_array(ctypes.cast(data, POINTER(kind)), (size,)).copy()

    try:
        integers = [
            copied(interface.library.numl_graph_integers(handle, which, data), c_int32, np.int32)
            for which in range(6)
        ]
        floats = [
            copied(interface.library.numl_graph_floats(handle, which, data), c_float, np.float32)
            for which in range(2)
        ]
    finally:
        interface.library.numl_graph_free(handle)
    return integers, floats


def cluster(coordinates: NDArray[np.float32], eps: float, min_samples: int) -> Int32Array:
    """Label points as scikit-learn's DBSCAN does.

    Args:
        coordinates: ``[n, F]``.
        eps: Largest distance between neighbours.
        min_samples: Neighbours that make a point a core, the point itself included.

    Returns:
        int32 ``[n]``, -1 for no cluster.

    Raises:
        EventError: There are too many points.
    """
    points = np.ascontiguousarray(coordinates, np.float32)
    labels = np.empty(len(points), np.int32)
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    status = interface.library.numl_cluster(
        points.ctypes.data, *points.shape, eps, min_samples, labels.ctypes.data, error, _ERROR_BYTES
    )
    _check(status, error)
    return labels


def guard_arrays() -> None:
    """Let Triton's stub survive a tensor whose shape no array can have.

    Triton 2.51 lets one through if its bytes are right in 64 bits that wrap: [2^62] or [-2^62],
    without data. ``native/guard.cpp`` says how. Call it before the first request.
    """
    try:
        multiarray = importlib.import_module("numpy._core.multiarray")
    except ModuleNotFoundError:  # before numpy 1.26.1
        multiarray = importlib.import_module("numpy.core.multiarray")
    capsule = multiarray._ARRAY_API
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, (ctypes.py_object, c_char_p)
    interface.library.numl_guard_arrays(pointer(capsule, None))


def _check(status: int, error: ctypes.Array[ctypes.c_char]) -> None:
    if status == _EVENT_REFUSED:
        raise EventError(error.value.decode())
    if status:
        raise RuntimeError(error.value.decode())


def _normalisation(
    card: ModelCard,
) -> tuple[NDArray[np.float32], NDArray[np.float32]] | tuple[None, None]:
    if card.normalisation is None:
        return None, None
    rows = [card.normalisation[plane] for plane in card.planes]
    return (
        np.array([row.mean for row in rows], np.float32),
        np.array([row.std for row in rows], np.float32),
    )


def _head(card: ModelCard, head: Head) -> interface.Head:
    activation = ACTIVATIONS.index(head.activation)
    return interface.Head(head.name.encode(), _node(card, head), head.width, activation)


def _node(card: ModelCard, head: Head) -> int:
    """Return what a head applies to, by ``native/library.h``."""
    if card.network.embedding is not None and head.name in EMBEDDED_HEADS:
        return len(NODES) + EMBEDDED_HEADS.index(head.name)
    return NODES.index(head.node)


def _clustering(card: ModelCard, places: Mapping[str, int]) -> interface.Clustering:
    rule = card.clustering
    if rule is None:
        return interface.Clustering(embedding=-1)
    return interface.Clustering(
        embedding=places[rule.embedding],
        signal=-1 if rule.signal is None else places[rule.signal],
        semantic=-1 if rule.semantic is None else places[rule.semantic],
        background=rule.background,
        eps=rule.eps,
        min_samples=rule.min_samples,
    )
