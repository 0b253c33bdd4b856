"""One message-passing iteration of a network as a function of tensors alone, for compilation.

All iterations of a network use the same weights, so that one of them is compiled and called again
and again. Weights are arguments like any other: what is compiled belongs to an architecture, and
serves all weights of it.

On a CPU the arithmetic is one that only a compiler makes fast; on a GPU it is that of the networks.

The sizes of an event are free, but a compiler takes the sizes 0 and 1 for special ones. No size is
ever that small: an event travels with a constant second one, its `COMPANION`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from numl_serving.event import Event
from numl_serving.graph import EventGraph, build_graph
from numl_serving.networks import nugraph2, nugraph3
from numl_serving.networks.common import (
    GraphBatch,
    closed_offsets,
    gated_messages,
    softmax_aggregate,
)
from numl_serving.networks.nugraph2 import Arithmetic2, NuGraph2, State2
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
        update3: NuGraph3's block.
        arithmetic2: Those of NuGraph2.
    """

    update3: nugraph3.Update
    arithmetic2: Arithmetic2


def _starts(up_offsets: Tensor) -> Tensor:
    """Return the first upward edge of each nexus segment as ``[3, S]``."""
    # No size may be a multiple of another: Inductor of torch 2.13 divides such a size in floating
    # point, and gets 51 for 157 = 3 x 52 + 1.
    return up_offsets[:-1].view(3, -1)


class Iteration3(nn.Module):
    """An iteration of NuGraph3; arguments and results are those of `inputs` and `State3`."""

    def __init__(self, network: NuGraph3, update: nugraph3.Update) -> None:
        super().__init__()
        self.network = network
        self._update = update

    def inputs(self, batch: GraphBatch) -> tuple[Tensor, ...]:
        """Return what `forward` needs of a batch."""
        indices = (
            batch.edge_source,
            batch.edge_target,
            batch.edge_offsets,
            batch.up_hit,
            batch.up_segment,
            _starts(batch.up_offsets),
            batch.down_spacepoint,
            batch.down_segment,
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
        down_segment: Tensor,
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
            down_segment=down_segment,
            down_hit=down_hit,
            down_offsets=down_offsets,
            spacepoint_event=spacepoint_event,
            spacepoint_offsets=spacepoint_offsets,
            spacepoint_position=nexus,  # not read by an iteration
        )
        return tuple(self.network.iterate(State3(hits, nexus, event), batch, self._update))


class Iteration2(nn.Module):
    """An iteration of NuGraph2; arguments and results are those of `inputs` and `State2`."""

    def __init__(self, network: NuGraph2, arithmetic: Arithmetic2) -> None:
        super().__init__()
        self.network = network
        self._arithmetic = arithmetic

    def inputs(self, batch: GraphBatch) -> tuple[Tensor, ...]:
        """Return what `forward` needs of a batch."""
        return (
            batch.edge_source,
            batch.edge_target,
            batch.edge_offsets,
            batch.up_hit,
            _starts(batch.up_offsets),
            batch.down_spacepoint,
            batch.down_segment,
            batch.down_hit,
            batch.down_offsets,
            batch.spacepoint_event,
            *batch.features,
        )

    def forward(
        self,
        hits: Tensor,
        edge_source: Tensor,
        edge_target: Tensor,
        edge_offsets: Tensor,
        up_hit: Tensor,
        up_starts: Tensor,
        down_spacepoint: Tensor,
        down_segment: Tensor,
        down_hit: Tensor,
        down_offsets: Tensor,
        spacepoint_event: Tensor,
        u: Tensor,
        v: Tensor,
        y: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the new state."""
        unread = edge_source
        batch = GraphBatch(
            features=(u, v, y),
            edge_source=edge_source,
            edge_target=edge_target,
            edge_offsets=edge_offsets,
            up_hit=up_hit,
            up_segment=unread,
            up_offsets=closed_offsets(up_starts, up_hit.shape[0]),
            down_spacepoint=down_spacepoint,
            down_segment=down_segment,
            down_hit=down_hit,
            down_offsets=down_offsets,
            spacepoint_event=spacepoint_event,
            spacepoint_offsets=unread,
            spacepoint_position=unread,
        )
        return tuple(self.network.iterate(State2(hits), batch, self._arithmetic))


Iteration = Iteration2 | Iteration3


def plain_aggregate(
    table: Tensor, rows: Tensor, gate: Tensor, segment: Tensor, offsets: Tensor
) -> Tensor:
    """Aggregate as `gated_softmax_aggregate` does, without its question about the messages' size.

    A compiler could not follow it: the answer is not known before there are numbers.
    """
    return softmax_aggregate(gated_messages(table, rows, gate), segment, offsets)


PLAIN = Arithmetic(partial(nugraph3.update, aggregate=plain_aggregate), Arithmetic2())
"""The networks' own arithmetic, for any device."""


def iteration_of(network: Network, arithmetic: Arithmetic = PLAIN) -> Iteration:
    """Return a network's iteration."""
    if isinstance(network, NuGraph2):
        return Iteration2(network, arithmetic.arithmetic2)
    return Iteration3(network, arithmetic.update3)


def weights_of(iteration: Iteration) -> Mapping[str, Tensor]:
    """Return the weights that an iteration reads, by name, always in the same order."""
    outside = ("network.encode", "network.decode", "network.semantic_", "network.filter_")
    return {
        name: tensor
        for name, tensor in sorted(iteration.named_buffers())
        if not name.startswith(outside)
    }


def _gated_block(
    block: nugraph3.Block,
    target: Tensor,
    source: Tensor,
    messages: nugraph3.Messages,
    sizes: Sequence[int],
) -> Tensor:
    """Compute NuGraph3's block by the operator that `block_ops` defines."""
    updated: Tensor = torch.ops.numl.gated_block(
        target,
        source,
        messages.rows,
        messages.gate,
        messages.offsets,
        [target.shape[0]] if len(block.hidden_weight) == 1 else list(sizes),
        block.hidden_weight,
        block.hidden_bias,
        block.output_weight,
        block.output_bias,
    )
    return updated


def _class_block(
    block: nugraph2.ClassBlock,
    target: Tensor,
    given: Tensor,
    source: Tensor,
    messages: nugraph2.ClassMessages,
    sizes: Sequence[int],
) -> Tensor:
    """Compute NuGraph2's block by the operator that `block_ops` defines."""
    updated: Tensor = torch.ops.numl.class_block(
        target,
        given,
        source,
        messages.rows,
        messages.weights,
        messages.offsets,
        list(sizes),
        block.hidden_weight,
        block.hidden_bias,
        block.output_weight,
        block.output_bias,
    )
    return updated


def _class_nexus(
    block: nugraph2.ClassNexus, hits: Tensor, batch: GraphBatch, sizes: Sequence[int]
) -> Tensor:
    """Compute NuGraph2's spacepoints by the operator that `block_ops` defines."""
    updated: Tensor = torch.ops.numl.class_nexus(
        hits,
        batch.up_hit,
        batch.up_offsets,
        list(sizes),
        batch.spacepoint_event.shape[0],
        block.hidden_weight,
        block.hidden_bias,
        block.output_weight,
        block.output_bias,
    )
    return updated


def _scores(x: Tensor, weight: Tensor) -> Tensor:
    """Compute NuGraph2's scores: as a matrix product they would take several times as long."""
    return (x * weight[:, None]).sum(2)


ON_CPU = Arithmetic(_gated_block, Arithmetic2(_class_block, _class_nexus, _scores))
"""What is fastest on one core of a CPU, once it is compiled there."""
