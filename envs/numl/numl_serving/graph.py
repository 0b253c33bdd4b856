"""The graph of an event, for the networks in PyTorch. The native library builds it.

Per plane it is a Delaunay triangulation of the hits, and spacepoints join the planes: the graph
that pynuml (``HitGraphProducer``) builds with PyTorch Geometric's ``Delaunay`` and ``FaceToEdge``.
"""

from __future__ import annotations

from dataclasses import dataclass

from numl_formats.card import ModelCard
from numl_serving.event import Event, Float32Array, Int32Array
from numl_serving.native import event_columns, graph_lists


@dataclass(frozen=True, slots=True, eq=False)
class EventGraph:
    """The graph of one event with H hits, S spacepoints, E planar and N nexus edges.

    Hits are numbered plane after plane, within a plane in the order of the request. Edges are
    sorted by the node that receives, and by the one that sends.

    Attributes:
        features: float32 ``[H, features]``, not normalised.
        plane_sizes: Number of hits of each plane.
        rows: int32 ``[H]``, row of each hit in the request.
        edge_offsets: int32 ``[H + 1]``, first planar edge of each hit. Each pair of neighbours has
            an edge in both directions.
        edge_source: int32 ``[E]``, the hit that sends.
        up_offsets: int32 ``[planes S + 1]``, first nexus edge of each pair of plane and
            spacepoint, numbered ``plane * S + spacepoint``.
        up_hit: int32 ``[N]``, the hit that sends.
        num_spacepoints: S.
        position: float32 ``[S, 3]`` (cm), zeros where the event carries none.
    """

    features: Float32Array
    plane_sizes: tuple[int, ...]
    rows: Int32Array
    edge_offsets: Int32Array
    edge_source: Int32Array
    up_offsets: Int32Array
    up_hit: Int32Array
    num_spacepoints: int
    position: Float32Array


def build_graph(event: Event, card: ModelCard) -> EventGraph:
    """Build the graph of an event as a model card describes it.

    Raises:
        EventError: Hit ids repeat so often that there would be too many nexus edges.
    """
    columns = event_columns(event, card.hit_features, card.position_scale)
    (first, rows, *edges), (features, position) = graph_lists(columns)
    edge_offsets, edge_source, up_offsets, up_hit = edges
    return EventGraph(
        features=features.reshape(-1, len(card.hit_features)),
        plane_sizes=tuple((first[1:] - first[:-1]).tolist()),
        rows=rows,
        edge_offsets=edge_offsets,
        edge_source=edge_source,
        up_offsets=up_offsets,
        up_hit=up_hit,
        num_spacepoints=event.num_spacepoints,
        position=position.reshape(-1, 3),
    )
