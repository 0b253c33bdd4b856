"""The operator that ``softmax_aggregate.cpp`` implements, as torch has to know it to compile.

A compiled iteration calls the C++ function itself: where it only runs, nobody needs this module.
"""

from __future__ import annotations

import torch
from torch import Tensor

from numl_serving.networks.common import gated_softmax_aggregate

SHIM = (
    "AOTITorchError aoti_torch_cpu_gated_softmax(AtenTensorHandle, AtenTensorHandle, "
    "AtenTensorHandle, AtenTensorHandle, AtenTensorHandle*)"
)
"""Declaration of the C++ function, under the name that Inductor gives it."""


@torch.library.custom_op("numl::gated_softmax", mutates_args=())
def gated_softmax(table: Tensor, rows: Tensor, gate: Tensor, offsets: Tensor) -> Tensor:
    """Aggregate gated rows of a table; see `gated_softmax_aggregate`.

    Args:
        table: ``[R, F]``, features of the nodes that send.
        rows: int64 ``[E]``, the node that sends each message.
        gate: ``[E]``, factor of each message.
        offsets: int64 ``[M + 1]``, first message of each segment.

    Returns:
        ``[M, F]``, zero for empty segments.
    """
    segment = torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())
    return gated_softmax_aggregate(table, rows, gate, segment, offsets)


@gated_softmax.register_fake
def _(table: Tensor, rows: Tensor, gate: Tensor, offsets: Tensor) -> Tensor:
    return table.new_empty((offsets.shape[0] - 1, table.shape[1]))
