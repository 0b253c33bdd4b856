"""The native library, ``libnuml.so``: from an event's columns to its answer in one call.

It is compiled when the package is built (``envs/numl/native``), has a C interface, and is called
by ctypes, which releases Python's lock meanwhile.
"""

from __future__ import annotations

import ctypes
import importlib
import weakref
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
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
from numl_serving.answer import too_large
from numl_serving.errors import EventError, ModelFilesError
from numl_serving.event import Event, Int32Array
from numl_serving.shapes import check_weights

LIBRARY = Path(__file__).with_name("libnuml.so")

_EVENT_REFUSED, _NOT_FINITE, _FAILED = 1, 2, 3
_ERROR_BYTES = 512


class _Feature(Structure):
    _fields_ = (("column", c_void_p), ("kind", c_int32), ("scale", c_float))


class _Event(Structure):
    _fields_ = (
        ("planes", c_int32),
        ("hits", c_int32),
        ("spacepoints", c_int32),
        ("features", c_int32),
        ("hit_id", c_void_p),
        ("plane", c_void_p),
        ("wire", c_void_p),
        ("time", c_void_p),
        ("wire_scale", c_float),
        ("time_scale", c_float),
        ("feature", POINTER(_Feature)),
        ("spacepoint_hit_id", POINTER(c_void_p)),
        ("position", POINTER(c_void_p)),
    )


class _Weight(Structure):
    _fields_ = (("name", c_char_p), ("data", c_void_p), ("sets", c_int32))


class _Head(Structure):
    _fields_ = (
        ("name", c_char_p),
        ("node", c_int32),
        ("width", c_int32),
        ("activation", c_int32),
    )


class _Clustering(Structure):
    _fields_ = (
        ("embedding", c_int32),
        ("signal", c_int32),
        ("semantic", c_int32),
        ("background", c_int32),
        ("eps", c_double),
        ("min_samples", c_int32),
    )


class _Card(Structure):
    _fields_ = (
        ("kind", c_int32),
        ("nexus", c_int32),
        ("iterations", c_int32),
        ("planes", c_int32),
        ("features", c_int32),
        ("classes", c_int32),
        ("hit_width", c_int32),
        ("nexus_width", c_int32),
        ("event_width", c_int32),
        ("starts_from_position", c_int32),
        ("embedding_layers", c_int32),
        ("embedding_width", c_int32),
        ("embedding_hidden", c_int32),
        ("mean", c_void_p),
        ("std", c_void_p),
        ("heads", c_int32),
        ("head", POINTER(_Head)),
        ("clustering", _Clustering),
        ("weights", c_int32),
        ("weight", POINTER(_Weight)),
        ("level", c_int32),
    )


def _open() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise ImportError(
            f"numl_serving's native library cannot be loaded ({error}): install the package again"
        ) from None
    text = (c_char_p, c_int64)
    for name, result, arguments in (
        ("numl_network_new", c_void_p, (POINTER(_Card), *text)),
        ("numl_network_free", None, (c_void_p,)),
        ("numl_network_level", c_int32, (c_void_p,)),
        (
            "numl_infer",
            c_int32,
            (c_void_p, POINTER(_Event), c_void_p, c_void_p, POINTER(c_double), *text),
        ),
        ("numl_graph_new", c_void_p, (POINTER(_Event), *text)),
        ("numl_graph_free", None, (c_void_p,)),
        ("numl_graph_integers", c_int64, (c_void_p, c_int32, POINTER(c_void_p))),
        ("numl_graph_floats", c_int64, (c_void_p, c_int32, POINTER(c_void_p))),
        (
            "numl_cluster",
            c_int32,
            (c_void_p, c_int32, c_int32, c_double, c_int32, c_void_p, *text),
        ),
        ("numl_guard_arrays", None, (c_void_p,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_library = _open()


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
        heads = (_Head * len(card.heads))(
            *(
                _Head(h.name.encode(), _node(card, h), h.width, ACTIVATIONS.index(h.activation))
                for h in card.heads
            )
        )
        table = (_Weight * len(arrays))(
            *(_Weight(n.encode(), a.ctypes.data, a.shape[0]) for n, a in arrays.items())
        )
        embedding = spec.embedding or Embedding(0, 0, 0)
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        handle = _library.numl_network_new(
            _Card(
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
        weakref.finalize(self, _library.numl_network_free, handle)

    @property
    def level(self) -> int:
        """The instruction level it runs at."""
        return int(_library.numl_network_level(self._handle))

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
        status = _library.numl_infer(
            self._handle, columns, pointers, clusters, graph_s, error, _ERROR_BYTES
        )
        if status == _NOT_FINITE:
            raise EventError(too_large(event))
        if status == _EVENT_REFUSED:
            raise EventError(error.value.decode())
        if status == _FAILED:
            raise RuntimeError(error.value.decode())
        return outputs, graph_s.value


def event_columns(
    event: Event, features: Sequence[str], position_scale: tuple[float, float]
) -> _Event:
    """Return an event as the library reads it; valid as long as the event is."""
    scales = dict(zip(POSITION_FEATURES, position_scale, strict=True))
    columns = {"wire_position": "local_wire", "time_position": "local_time"}
    table = (_Feature * len(features))()
    for index, feature in enumerate(features):
        if feature in EXTENSION_FEATURES:
            table[index] = _Feature(None, 2 + EXTENSION_FEATURES.index(feature), 1.0)
            continue
        column = event.hit(columns.get(feature, feature))
        table[index] = _Feature(
            column.ctypes.data, column.dtype == np.int32, scales.get(feature, 1.0)
        )
    ids = [event.columns[f"{SPACEPOINTS}_hit_id_{plane}"] for plane in event.schema.planes]
    position = None
    if event.has_positions:
        axes = [event.columns[f"{SPACEPOINTS}_position_{axis}"].ctypes.data for axis in "xyz"]
        position = (c_void_p * 3)(*axes)
    return _Event(
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


def graph_lists(columns: _Event) -> tuple[list[NDArray[np.int32]], list[NDArray[np.float32]]]:
    """Build only the graph; return copies of its lists.

    Returns:
        ``first``, ``row``, ``edge_offsets``, ``edge_source``, ``up_offsets`` and ``up_hit``, as
        ``native/graph.h`` describes them; and the features and positions, flat.

    Raises:
        EventError: The event's ids would expand into too many edges.
    """
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    handle = _library.numl_graph_new(columns, error, _ERROR_BYTES)
    if not handle:
        raise EventError(error.value.decode())
    data = c_void_p()

    def copied(size: int, kind: Any, dtype: Any) -> NDArray[Any]:
        if not size:
            return np.empty(0, dtype)
        return np.ctypeslib.as_array(ctypes.cast(data, POINTER(kind)), (size,)).copy()

    try:
        integers = [
            copied(_library.numl_graph_integers(handle, which, data), c_int32, np.int32)
            for which in range(6)
        ]
        floats = [
            copied(_library.numl_graph_floats(handle, which, data), c_float, np.float32)
            for which in range(2)
        ]
    finally:
        _library.numl_graph_free(handle)
    return integers, floats


def cluster(coordinates: NDArray[np.float32], eps: float, min_samples: int) -> Int32Array:
    """Label points as scikit-learn's DBSCAN does.

    Args:
        coordinates: ``[n, F]``.
        eps: Largest distance between neighbours.
        min_samples: Neighbours that make a point a core, the point itself included.

    Returns:
        int32 ``[n]``, -1 for no cluster.
    """
    points = np.ascontiguousarray(coordinates, np.float32)
    labels = np.empty(len(points), np.int32)
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    status = _library.numl_cluster(
        points.ctypes.data, *points.shape, eps, min_samples, labels.ctypes.data, error, _ERROR_BYTES
    )
    if status:
        raise RuntimeError(error.value.decode())
    return labels


def guard_arrays() -> None:
    """Let Triton's stub survive a tensor whose shape no array can have.

    Triton 2.51 lets one through if its bytes are right in 64 bits that wrap: [2^62] or [-2^62],
    without data. ``native/guard.cpp`` says how. Call it before the first request.
    """
    capsule = importlib.import_module("numpy._core.multiarray")._ARRAY_API
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, (ctypes.py_object, c_char_p)
    _library.numl_guard_arrays(pointer(capsule, None))


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


def _node(card: ModelCard, head: Head) -> int:
    """Return what a head applies to, by ``native/library.h``."""
    if card.network.embedding is not None and head.name in EMBEDDED_HEADS:
        return len(NODES) + EMBEDDED_HEADS.index(head.name)
    return NODES.index(head.node)


def _clustering(card: ModelCard, places: Mapping[str, int]) -> _Clustering:
    rule = card.clustering
    if rule is None:
        return _Clustering(embedding=-1)
    return _Clustering(
        embedding=places[rule.embedding],
        signal=-1 if rule.signal is None else places[rule.signal],
        semantic=-1 if rule.semantic is None else places[rule.semantic],
        background=rule.background,
        eps=rule.eps,
        min_samples=rule.min_samples,
    )
