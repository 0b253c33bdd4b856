"""Between the host's memory and a GPU's: one copy each way for a batch, on its own stream.

A batch is some twenty small tensors. Copied one by one, each would cost a call to the driver and,
from memory that the kernel may move, a wait. So they are packed into one buffer of pinned memory,
which the GPU reads while the host goes on, and become views of one buffer on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from numl_serving.networks.batch import GraphBatch

_ALIGNMENT = 256  # bytes: that of the device's own allocations


class Transfer:
    """Copies batches to a device and answers back. Not for use by several threads at once.

    Args:
        device: The device. On a CPU the same copies are made, without stream and pinning.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_gpu = device.type == "cuda"
        self._stream: Any = None
        if self._is_gpu:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._staging = self._host_buffer(0)

    def stream(self) -> AbstractContextManager[object]:
        """Return the context for all work on this device."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def to_device(self, batch: GraphBatch) -> GraphBatch:
        """Copy a batch to the device; valid until its outputs have been fetched."""
        tensors = batch.tensors()
        places = _places([tensor.numel() * tensor.element_size() for tensor in tensors])
        staging = self._provide(places[-1])
        for tensor, place in zip(tensors, places, strict=False):
            _view(staging, place, tensor).copy_(tensor)
        packed = staging.to(self._device, non_blocking=True)
        return batch.with_tensors(
            _view(packed, place, tensor) for tensor, place in zip(tensors, places, strict=False)
        )

    def fetch(self, outputs: Mapping[str, Tensor]) -> dict[str, NDArray[np.float32]]:
        """Copy outputs (float32) to host memory; blocks until they have arrived."""
        packed = torch.cat([tensor.reshape(-1) for tensor in outputs.values()])
        host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=self._is_gpu)
        host.copy_(packed, non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()
        parts = torch.split(host, [tensor.numel() for tensor in outputs.values()])
        # Copied once more: pinned memory is scarce, and others keep what they are given.
        arrays = [part.numpy().copy() for part in parts]
        return {
            name: array.reshape(tensor.shape)
            for (name, tensor), array in zip(outputs.items(), arrays, strict=True)
        }

    def _provide(self, size: int) -> Tensor:
        """Return ``size`` bytes of the staging buffer, which no earlier copy may still be using."""
        if size > len(self._staging):
            self._staging = self._host_buffer(2 * size)
        return self._staging[:size]

    def _host_buffer(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._is_gpu)


def _places(sizes: Sequence[int]) -> list[int]:
    """Return the start offset of each block of these sizes, and the end of the last."""
    padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
    return [0, *accumulate(padded)]


def _view(buffer: Tensor, place: int, like: Tensor) -> Tensor:
    """Return a view of the byte buffer shaped like this tensor."""
    part = buffer[place : place + like.numel() * like.element_size()]
    return part.view(like.dtype).view(like.shape)
