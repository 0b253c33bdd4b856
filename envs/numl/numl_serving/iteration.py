"""One message-passing iteration of a network as a function of tensors alone, for compilation.

All iterations of a network use the same weights, so that one of them is compiled and called again
and again. Weights are arguments like any other: what is compiled belongs to an architecture, and
serves all weights of it.

On a CPU the arithmetic is one that only a compiler makes fast; on a GPU it is that of the networks.

The sizes of an event are free, but a compiler takes the sizes 0 and 1 for special ones. No size is
ever that small: an event travels with a constant second one, its `COMPANION`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from numl_serving.event import Event
from numl_serving.graph import EventGraph, build_graph
from numl_serving.networks.common import (
    Aggregate,
    GraphBatch,
    closed_offsets,
    gated_messages,
    softmax_aggregate,
)
from numl_serving.networks.nugraph2 import ClassEdges, NuGraph2, State2, Tanh
from numl_serving.networks.nugraph3 import NuGraph3, State3

Network = NuGraph2 | NuGraph3


def _companion() -> EventGraph:
    rows = np.arange(6, dtype=np.int32)
    ones = np.ones(6, np.float32)
    pair = rows[:2]
    return build_graph(
        Event.from_tensors(
            {
                "hit_table_hit_id": rows,
                "hit_table_local_plane": rows // 2,
                "hit_table_local_time": ones,
                "hit_table_local_wire": rows,
                "hit_table_integral": ones,
                "hit_table_rms": ones,
                "spacepoint_table_spacepoint_id": pair,
                "spacepoint_table_hit_id_u": pair,
                "spacepoint_table_hit_id_v": pair + 2,
                "spacepoint_table_hit_id_y": pair + 4,
            }
        )
    )


COMPANION = _companion()
"""The graph of an event with two hits in each plane and two spacepoints that join them."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The functions of an iteration that are not the same on every device.

    Attributes:
        aggregate: NuGraph3's aggregation.
        tanh: NuGraph2's hyperbolic tangent.
    """

    aggregate: Aggregate
    tanh: Tanh


class Iteration3(nn.Module):
    """An iteration of NuGraph3; arguments and results are those of `inputs` and `State3`."""

    def __init__(self, network: NuGraph3, aggregate: Aggregate) -> None:
        super().__init__()
        self.network = network
        self._aggregate = aggregate

    def inputs(self, batch: GraphBatch) -> tuple[Tensor, ...]:
        """Return what `forward` needs of a batch."""
        # No size may be a multiple of another: Inductor of torch 2.13 divides such a size in
        # floating point, and gets 51 for 157 = 3 x 52 + 1.
        up_starts = batch.up_offsets[:-1].view(3, -1)
        indices = (
            batch.edge_source,
            batch.edge_target,
            batch.edge_offsets,
            batch.up_hit,
            batch.up_segment,
            up_starts,
            batch.down_spacepoint,
            batch.down_slot,
            batch.down_hit,
            batch.down_offsets,
            batch.spacepoint_event,
            batch.spacepoint_offsets,
        )
        # Only weights per plane need to know where a plane ends.
        return indices if self.network.spec.variant == "24.7.1" else (*indices, *batch.features)

    def forward(
        self,
        hits: Tensor,
        nexus: Tensor,
        event: Tensor,
        edge_source: Tensor,
        edge_target: Tensor,
        edge_offsets: Tensor,
        up_hit: Tensor,
        up_segment: Tensor,
        up_starts: Tensor,
        down_spacepoint: Tensor,
        down_slot: Tensor,
        down_hit: Tensor,
        down_offsets: Tensor,
        spacepoint_event: Tensor,
        spacepoint_offsets: Tensor,
        *features: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the new state."""
        u, v, y = features or (hits, hits, hits)
        batch = GraphBatch(
            features=(u, v, y),
            edge_source=edge_source,
            edge_target=edge_target,
            edge_offsets=edge_offsets,
            up_hit=up_hit,
            up_segment=up_segment,
            up_offsets=closed_offsets(up_starts, up_hit.shape[0]),
            down_spacepoint=down_spacepoint,
            down_slot=down_slot,
            down_hit=down_hit,
            down_offsets=down_offsets,
            spacepoint_event=spacepoint_event,
            spacepoint_offsets=spacepoint_offsets,
            spacepoint_position=nexus,  # not read by an iteration
        )
        return tuple(self.network.iterate(State3(hits, nexus, event), batch, self._aggregate))


class Iteration2(nn.Module):
    """An iteration of NuGraph2; arguments are those of `inputs`, the result is ``hits``."""

    def __init__(self, network: NuGraph2, tanh: Tanh) -> None:
        super().__init__()
        self.network = network
        self._tanh = tanh

    def inputs(self, batch: GraphBatch) -> tuple[Tensor, ...]:
        """Return what `forward` needs of a batch."""
        edges = ClassEdges.of(batch, self.network.spec.semantic_classes)
        return (
            batch.edge_source,
            batch.edge_target,
            batch.down_slot,
            batch.down_hit,
            *edges,
            *batch.features,
        )

    def forward(
        self,
        hits: Tensor,
        given_own: Tensor,
        given_sent: Tensor,
        edge_source: Tensor,
        edge_target: Tensor,
        down_slot: Tensor,
        down_hit: Tensor,
        *edges_and_features: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the new features of the hits."""
        edges = ClassEdges(*edges_and_features[:7])
        u, v, y = edges_and_features[7:]
        unread = edge_source
        batch = GraphBatch(
            features=(u, v, y),
            edge_source=edge_source,
            edge_target=edge_target,
            edge_offsets=unread,
            up_hit=unread,
            up_segment=unread,
            up_offsets=unread,
            down_spacepoint=unread,
            down_slot=down_slot,
            down_hit=down_hit,
            down_offsets=unread,
            spacepoint_event=unread,
            spacepoint_offsets=unread,
            spacepoint_position=unread,
        )
        state = self.network.iterate(State2(hits, given_own, given_sent), batch, edges, self._tanh)
        return (state.hits,)


Iteration = Iteration2 | Iteration3


def plain_aggregate(
    table: Tensor, rows: Tensor | None, gate: Tensor, segment: Tensor, offsets: Tensor
) -> Tensor:
    """Aggregate as `gated_softmax_aggregate` does, without its question about the messages' size.

    A compiler could not follow it: the answer is not known before there are numbers.
    """
    return softmax_aggregate(gated_messages(table, rows, gate), segment, offsets)


PLAIN = Arithmetic(plain_aggregate, torch.tanh)
"""The networks' own arithmetic, for any device."""


def iteration_of(network: Network, arithmetic: Arithmetic = PLAIN) -> Iteration:
    """Return a network's iteration."""
    if isinstance(network, NuGraph2):
        return Iteration2(network, arithmetic.tanh)
    return Iteration3(network, arithmetic.aggregate)


def weights_of(iteration: Iteration) -> Mapping[str, Tensor]:
    """Return the weights that an iteration reads, by name, always in the same order."""
    outside = ("network.encode", "network.decode", "network.filter_", "network.given_")
    return {
        name: tensor
        for name, tensor in sorted(iteration.named_buffers())
        if not name.startswith(outside)
    }


def aggregate_in_one_pass(
    table: Tensor, rows: Tensor | None, gate: Tensor, segment: Tensor, offsets: Tensor
) -> Tensor:
    """Aggregate by the operator that `softmax_op` defines."""
    if rows is None:
        rows = torch.arange(table.shape[0])
    aggregated: Tensor = torch.ops.numl.gated_softmax(table, rows, gate, offsets)
    return aggregated


# Numerator (odd powers) and denominator (even powers), highest power first: the approximation of
# Eigen's generic_fast_tanh_float, a minimax fit on the interval outside which tanh is 1 in float32.
_TANH_LIMIT = 7.90531110763549805
_TANH_NUMERATOR = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_DENOMINATOR = (
    1.19825839466702e-06,
    1.18534705686654e-04,
    2.26843463243900e-03,
    4.89352518554385e-03,
)


def rational_tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent to the precision of float32.

    Worth it only where a compiler makes one loop of it: then it takes a fifth of the time of the
    vector library's.
    """
    x = x.clamp(-_TANH_LIMIT, _TANH_LIMIT)
    square = x * x
    return x * _polynomial(square, _TANH_NUMERATOR) / _polynomial(square, _TANH_DENOMINATOR)


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


ON_CPU = Arithmetic(aggregate_in_one_pass, rational_tanh)
"""What is fastest on one core of a CPU, once it is compiled there."""
