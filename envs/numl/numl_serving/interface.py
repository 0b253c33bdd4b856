"""The C interface of the native library, ``libnuml.so``, as ``native/library.h`` describes it."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from pathlib import Path

LIBRARY = Path(__file__).with_name("libnuml.so")


class Feature(Structure):
    """A column of an event, or a feature that the library computes."""

    _fields_ = (("column", c_void_p), ("kind", c_int32), ("scale", c_float))


class Event(Structure):
    """An event's columns."""

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
        ("feature", POINTER(Feature)),
        ("spacepoint_hit_id", POINTER(c_void_p)),
        ("position", POINTER(c_void_p)),
    )


class Weight(Structure):
    """A tensor of weights by its name."""

    _fields_ = (("name", c_char_p), ("data", c_void_p), ("sets", c_int32))


class Head(Structure):
    """A head of a network."""

    _fields_ = (
        ("name", c_char_p),
        ("node", c_int32),
        ("width", c_int32),
        ("activation", c_int32),
    )


class Clustering(Structure):
    """How hits are clustered into instances."""

    _fields_ = (
        ("embedding", c_int32),
        ("signal", c_int32),
        ("semantic", c_int32),
        ("background", c_int32),
        ("eps", c_double),
        ("min_samples", c_int32),
    )


class Card(Structure):
    """A network: its card and weights."""

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
        ("head", POINTER(Head)),
        ("clustering", Clustering),
        ("weights", c_int32),
        ("weight", POINTER(Weight)),
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
        ("numl_network_new", c_void_p, (POINTER(Card), *text)),
        ("numl_network_free", None, (c_void_p,)),
        ("numl_network_level", c_int32, (c_void_p,)),
        (
            "numl_infer",
            c_int32,
            (c_void_p, POINTER(Event), c_void_p, c_void_p, POINTER(c_double), *text),
        ),
        ("numl_graph_new", c_void_p, (POINTER(Event), *text)),
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


library = _open()
