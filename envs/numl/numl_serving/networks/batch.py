"""The graphs of one or more events as tensors: one block-diagonal graph.

Hits are ordered by plane, then by event, then as in their `EventGraph`, so that every plane is one
contiguous range of rows. Edges are sorted by the node that receives their message: each node's
messages are one contiguous *segment*, and the order is found once instead of at every iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from numl_formats.card import ModelCard

if TYPE_CHECKING:
    from numl_serving.graph import EventGraph

Int64Array = NDArray[np.int64]


class Edges(NamedTuple):
    """E edges of one kind to M nodes, int64, sorted by the receiving node.

    Attributes:
        source: ``[E]``, the sending node.
        target: ``[E]``, the receiving node, ascending.
        offsets: ``[M + 1]``, the first edge of each receiving node.
    """

    source: Tensor
    target: Tensor
    offsets: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class GraphBatch:
    """The graphs of B events with H hits, F features, P planes and S spacepoints.

    Hits and spacepoints are numbered over all events. What a spacepoint is in one plane is a node
    of its own, number ``plane * S + spacepoint``.

    Attributes:
        plane_sizes: Number of hits of each plane.
        features: ``[H, F]``, float32 as `collate` makes it; normalised, if the card says so.
        position: ``[S, 3]`` in cm, of the same type; zeros where an event carries no positions.
        planar: Hit to hit.
        up: Hit to spacepoint in its plane; hit to spacepoint, if the card's nexus is ``joint``.
        down: Spacepoint in a plane to hit.
        to_event: Spacepoint to event.
        from_event: Event to spacepoint.
    """

    plane_sizes: tuple[int, ...]
    features: Tensor
    position: Tensor
    planar: Edges
    up: Edges
    down: Edges
    to_event: Edges
    from_event: Edges

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in the order in which `with_tensors` takes them."""
        kinds = (self.planar, self.up, self.down, self.to_event, self.from_event)
        return [self.features, self.position, *(tensor for kind in kinds for tensor in kind)]

    def with_tensors(self, tensors: Iterable[Tensor]) -> GraphBatch:
        """Return a batch with these tensors instead."""
        features, position, *edges = tensors
        kinds = (Edges(*edges[first : first + 3]) for first in range(0, len(edges), 3))
        return GraphBatch(self.plane_sizes, features, position, *kinds)

    def to(self, target: torch.device | torch.dtype) -> GraphBatch:
        """Return the batch on another device, or with floating point tensors of another dtype."""

        def move(tensor: Tensor) -> Tensor:
            keep = isinstance(target, torch.dtype) and not tensor.is_floating_point()
            return tensor if keep else tensor.to(target)

        return self.with_tensors(map(move, self.tensors()))


def collate(graphs: Sequence[EventGraph], card: ModelCard) -> GraphBatch:
    """Join the graphs of one or more events into a batch, and normalise their features.

    Args:
        graphs: The events, at least one; any of them may have no hits or no spacepoints.
        card: The model, for which the graphs were built.
    """
    planes = len(card.planes)
    spacepoint_start = _starts([graph.num_spacepoints for graph in graphs])
    spacepoints = int(spacepoint_start[-1])
    sizes = np.array([graph.plane_sizes for graph in graphs], np.int64).reshape(-1, planes)
    # Where each plane of each event begins: in its event, and in the batch.
    in_event = np.stack([_starts(row) for row in sizes])
    in_batch = _starts(sizes.T.ravel())[:-1].reshape(planes, -1)

    features: list[NDArray[np.float32]] = []
    edge_source, edge_count, up_hit, up_count = ([] for _ in range(4))
    for plane, name in enumerate(card.planes):
        for event, graph in enumerate(graphs):
            first, last = in_event[event, plane : plane + 2]
            shift = in_batch[plane, event] - first
            features.append(_normalised(graph.features[first:last], card, name))
            edges = graph.edge_offsets[[first, last]]
            edge_source.append(graph.edge_source[slice(*edges)] + shift)
            edge_count.append(np.diff(graph.edge_offsets[first : last + 1]))
            segments = graph.num_spacepoints * np.array([plane, plane + 1])
            ups = graph.up_offsets[segments]
            up_hit.append(graph.up_hit[slice(*ups)] + shift)
            up_count.append(np.diff(graph.up_offsets[segments[0] : segments[1] + 1]))

    hit = _joined(up_hit)
    node = np.repeat(np.arange(planes * spacepoints), _joined(up_count))
    owner = np.repeat(np.arange(len(graphs)), np.diff(spacepoint_start))
    every = np.arange(spacepoints)
    joint = card.network.nexus == "joint"
    received = node % max(spacepoints, 1) if joint else node
    hits = int(sizes.sum())
    edge_target = np.repeat(np.arange(hits), _joined(edge_count))
    return GraphBatch(
        plane_sizes=tuple(sizes.sum(0).tolist()),
        features=torch.from_numpy(np.concatenate(features)),
        position=torch.from_numpy(np.concatenate([graph.position for graph in graphs])),
        planar=_edges(_joined(edge_source), edge_target, hits),
        up=_edges(hit, received, spacepoints if joint else planes * spacepoints),
        down=_edges(node, hit, hits),
        to_event=_edges(every, owner, len(graphs)),
        from_event=_edges(owner, every, spacepoints),
    )


def _normalised(features: NDArray[np.float32], card: ModelCard, plane: str) -> NDArray[np.float32]:
    if card.normalisation is None:
        return features
    mean, std = (np.array(row, np.float32) for row in card.normalisation[plane])
    normalised: NDArray[np.float32] = (features - mean) / std
    return normalised


def _edges(source: Int64Array, target: Int64Array, nodes: int) -> Edges:
    """Sort edges by target node; the sort is stable."""
    order = np.argsort(target, kind="stable")
    offsets = _starts(np.bincount(target, minlength=nodes))
    return Edges(*map(torch.from_numpy, (source[order], target[order], offsets)))


def _joined(parts: Sequence[NDArray[Any]]) -> Int64Array:
    joined: Int64Array = np.concatenate(parts).astype(np.int64)
    return joined


def _starts(lengths: Sequence[int] | Int64Array) -> Int64Array:
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts
