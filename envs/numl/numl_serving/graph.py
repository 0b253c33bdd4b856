"""The graph of an event: per plane a Delaunay triangulation of its hits, joined by spacepoints.

The graph is the one that pynuml 24.7.1 (``HitGraphProducer``) builds with PyTorch Geometric's
``Delaunay`` and ``FaceToEdge``: the same edges in the same order, from numpy and QHull alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from numl_serving.event import PLANES, Event, Float32Array, HitTable, Int32Array
from numl_serving.qhull import Delaunay, QhullError

Int64Array: TypeAlias = NDArray[np.int64]

POSITION_SCALE = (0.3, 0.055)
"""Factors that turn wire number and time tick into cm (pynuml's ``pos_norm``)."""

# Joggled input: without it QHull merges cocircular and drops coincident hits, losing edges.
_QHULL_OPTIONS = "QJ"


@dataclass(frozen=True, slots=True, eq=False)
class PlaneGraph:
    """The hits of one wire plane, in the order of the request, and their edges.

    Attributes:
        position: float32 ``[h, 2]``, wire and time times the position scale (cm).
        features: float32 ``[h, 4]``, wire position, time position, integral, rms; not normalised.
        edges: int64 ``[2, E]``, source and target hit, each pair in both directions, sorted by
            (row 0, row 1). As the edges are symmetric, swapping the rows sorts them by target.
            A hit beside a coincident one may have no edge at all.
        nexus: int64 ``[2, N]``, hit and spacepoint, sorted by (spacepoint, hit).
    """

    position: Float32Array
    features: Float32Array
    edges: Int64Array
    nexus: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class EventGraph:
    """The graph of one event.

    Attributes:
        planes: One graph per plane in the order of `PLANES`; a plane may have no hits.
        num_spacepoints: Number of spacepoints S.
        spacepoint_position: float32 ``[S, 3]``, cm, or None where the event carries none.
    """

    planes: tuple[PlaneGraph, PlaneGraph, PlaneGraph]
    num_spacepoints: int
    spacepoint_position: Float32Array | None


def build_graph(
    event: Event, *, position_scale: tuple[float, float] = POSITION_SCALE
) -> EventGraph:
    """Build the graph of an event.

    Args:
        event: A valid event; its tables may be empty.
        position_scale: Factors for wire and time.
    """
    # The product is taken in float32, as pynuml takes it, so that positions are equal bit by bit.
    scale = np.array(position_scale, np.float32)
    spacepoints = event.spacepoints
    columns = (spacepoints.hit_id_u, spacepoints.hit_id_v, spacepoints.hit_id_y)
    u, v, y = (
        _plane_graph(event.hits, plane, columns[plane], scale) for plane in range(len(PLANES))
    )
    return EventGraph(
        planes=(u, v, y),
        num_spacepoints=len(spacepoints),
        spacepoint_position=spacepoints.position,
    )


def delaunay_edges(position: Float32Array) -> Int64Array:
    """Connect each hit to its neighbours in the Delaunay triangulation of the positions.

    Fewer than four hits are all connected to each other. QHull joggles the positions (option QJ)
    by a little more at each of 51 attempts, so that collinear and coincident hits are
    triangulated too. It still refuses hits that lie too close together for their distance from
    the origin, above all four or more hits of one position, which make PyTorch Geometric fail.
    For these the triangulation is that of the positions relative to the first hit, and should
    QHull refuse this as well, a chain through the hits in the order of wire, then time.

    Args:
        position: float32 ``[h, 2]``, finite.

    Returns:
        int64 ``[2, E]``: each edge in both directions, sorted by (row 0, row 1).
    """
    hits = len(position)
    if hits < 4:
        first, second = np.triu_indices(hits, k=1)
        return _both_directions(first, second, hits)
    points = position.astype(np.float64)
    triangulation = _triangulate(points)
    if triangulation is None:
        triangulation = _triangulate(points - points[0])
    if triangulation is None:
        chain = np.lexsort((points[:, 1], points[:, 0]))
        return _both_directions(chain[:-1], chain[1:], hits)
    return _triangle_edges(*triangulation, hits)


def nexus_edges(hit_id: Int32Array, spacepoint_hit_id: Int32Array) -> Int64Array:
    """Join the hits of a plane with the spacepoints that name them.

    Every pair of equal ids gives an edge, so that duplicate hit ids in a plane give several for
    one spacepoint, as pandas' inner merge does; ids without a partner give none. The order is
    that of the merge too, except where hit ids are duplicate.

    Args:
        hit_id: int32 ``[h]``, ids of the plane's hits.
        spacepoint_hit_id: int32 ``[S]``, the spacepoints' hit ids in this plane.

    Returns:
        int64 ``[2, N]``: hit index and spacepoint index, sorted by (spacepoint, hit).
    """
    if len(hit_id) and (hit_id[1:] > hit_id[:-1]).all():  # as they mostly come
        place = np.searchsorted(hit_id, spacepoint_hit_id)
        np.minimum(place, len(hit_id) - 1, out=place)
        spacepoint = np.flatnonzero(hit_id[place] == spacepoint_hit_id)
        return np.stack((place[spacepoint], spacepoint))
    order = np.argsort(hit_id, kind="stable")
    ordered = hit_id[order]
    start = np.searchsorted(ordered, spacepoint_hit_id, side="left")
    count = np.searchsorted(ordered, spacepoint_hit_id, side="right") - start
    spacepoint = np.repeat(np.arange(len(spacepoint_hit_id)), count)
    # Position of an edge among the edges of its spacepoint: 0 but for duplicate hit ids.
    rank = np.arange(len(spacepoint)) - np.repeat(np.cumsum(count) - count, count)
    return np.stack((order[np.repeat(start, count) + rank], spacepoint))


def _plane_graph(
    hits: HitTable, plane: int, spacepoint_hit_id: Int32Array, scale: Float32Array
) -> PlaneGraph:
    rows = np.flatnonzero(hits.local_plane == plane)
    position = np.empty((len(rows), 2), np.float32)
    position[:, 0] = hits.local_wire[rows]
    position[:, 1] = hits.local_time[rows]
    position *= scale
    features = np.empty((len(rows), 4), np.float32)
    features[:, :2] = position
    features[:, 2] = hits.integral[rows]
    features[:, 3] = hits.rms[rows]
    return PlaneGraph(
        position=position,
        features=features,
        edges=delaunay_edges(position),
        nexus=nexus_edges(hits.hit_id[rows], spacepoint_hit_id),
    )


def _triangulate(points: NDArray[np.float64]) -> tuple[Int32Array, Int32Array] | None:
    """Return per triangle its three hits, and the three triangles opposite of them (-1: none)."""
    try:
        found = Delaunay(points, qhull_options=_QHULL_OPTIONS)
    except QhullError:
        return None
    return found.simplices, found.neighbors


def _triangle_edges(triangles: Int32Array, neighbours: Int32Array, hits: int) -> Int64Array:
    """Return the edges of triangles in both directions.

    QHull gives the hits of every triangle in the same sense of rotation, so that two triangles run
    through their common edge in opposite directions: only the outermost edges lack one. Should it
    ever not, some directed edge would be there twice, which is looked for.
    """
    first, second = triangles[:, (1, 2, 0)].ravel(), triangles[:, (2, 0, 1)].ravel()
    outermost = np.flatnonzero(neighbours.ravel() < 0)
    keys = _keys(
        np.concatenate((first, second[outermost])), np.concatenate((second, first[outermost])), hits
    )
    keys.sort()
    if (keys[1:] == keys[:-1]).any():
        return _both_directions(first, second, hits)
    return _edges(keys, hits)


def _both_directions(first: NDArray[Any], second: NDArray[Any], hits: int) -> Int64Array:
    keys = np.unique(_keys(np.concatenate((first, second)), np.concatenate((second, first)), hits))
    return _edges(keys, hits)


def _keys(first: NDArray[Any], second: NDArray[Any], hits: int) -> NDArray[Any]:
    """Return edges as single numbers: they sort and compare faster than pairs do."""
    bits = hits.bit_length()
    # Half the width where it is enough: sorting is memory traffic.
    dtype = np.int32 if 2 * bits < 32 else np.int64
    keys: NDArray[Any] = first.astype(dtype)
    keys <<= bits
    keys |= second.astype(dtype, copy=False)
    return keys


def _edges(keys: NDArray[Any], hits: int) -> Int64Array:
    bits = hits.bit_length()
    edges = np.empty((2, len(keys)), np.int64)
    np.right_shift(keys, bits, out=edges[0])
    np.bitwise_and(keys, (1 << bits) - 1, out=edges[1])
    return edges
