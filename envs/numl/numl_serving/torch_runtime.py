"""The PyTorch networks behind `numl_serving.runtime`: batches of events, for GPUs."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from numl_formats.card import ModelCard
from numl_serving import batches
from numl_serving.answer import BatchResult, Outputs, check_finite
from numl_serving.batches import Limits
from numl_serving.clustering import add_instances
from numl_serving.errors import (
    DeviceLostError,
    ModelFilesError,
    ServingError,
    attempt,
    one_line,
)
from numl_serving.event import Event
from numl_serving.graph import EventGraph, build_graph
from numl_serving.native import cluster
from numl_serving.networks import build_network, collate
from numl_serving.transfer import Transfer


class TorchEngine:
    """A network in PyTorch, on its device.

    Args:
        card: The model's card.
        weights: Its weights.
        device: The device, as torch names it.
        threads: Intra-op threads of torch; None leaves them as they are.
        limits: The largest batch.
    """

    def __init__(
        self,
        card: ModelCard,
        weights: Mapping[str, NDArray[np.float32]],
        device: str,
        threads: int | None,
        limits: Limits,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self._card = card
        self._device = torch.device(device)
        self._network = build_network(card, weights).to(self._device).eval()
        self._transfer = None if self._device.type == "cpu" else Transfer(self._device)
        self._limits = limits

    def run(self, events: Sequence[Event]) -> BatchResult:
        """Answer events in batches, each with its own result."""
        start = time.perf_counter()
        results: dict[int, Outputs | ServingError] = {}
        graphs: dict[int, EventGraph] = {}
        for number, event in enumerate(events):
            graph = attempt(build_graph, event, self._card)
            if isinstance(graph, ServingError):
                results[number] = graph
            else:
                graphs[number] = graph
        built = time.perf_counter()
        answered, count = batches.run(graphs, self._limits, self._answer, self._recover)
        for number, outputs in answered.items():
            results[number] = outputs
            if not isinstance(outputs, ServingError):
                results[number] = attempt(self._finish, events[number], graphs[number], outputs)
        in_order = [results[number] for number in range(len(events))]
        return BatchResult(in_order, count, built - start, time.perf_counter() - built)

    def _answer(self, graphs: Sequence[EventGraph]) -> list[Outputs]:
        """Run one batch; returns the outputs of the heads for each graph."""
        batch = collate(graphs, self._card)
        with torch.inference_mode():
            if self._transfer is None:
                outputs = {name: array.numpy() for name, array in self._network(batch).items()}
            else:
                with self._transfer.stream():
                    answer = self._network(self._transfer.to_device(batch))
                    outputs = self._transfer.fetch(answer)
        return _split(outputs, graphs, self._card)

    def _finish(self, event: Event, graph: EventGraph, outputs: Outputs) -> Outputs:
        check_finite(event, outputs)
        if (clustering := self._card.clustering) is not None:
            add_instances(outputs, clustering, self._card.planes, graph.rows, cluster)
        return outputs

    def _recover(self) -> DeviceLostError | None:
        """Release a failed batch's memory; returns an error if the device is lost."""
        gc.collect()
        if self._device.type != "cuda":
            return None
        try:
            torch.cuda.empty_cache()
            # After an illegal access, a failed assertion or an error of its memory, a GPU
            # answers this process with the same error for ever.
            torch.zeros(1, device=self._device).add_(1)
            torch.cuda.synchronize(self._device)
        except torch.OutOfMemoryError:
            return None  # others have taken all of it: that may pass
        except Exception as error:
            return DeviceLostError(f"{self._device} is no longer usable ({one_line(error)})")
        return None


def gpu_of(device_id: str) -> str:
    """Return torch's name of the GPU that Triton gave to an instance.

    Args:
        device_id: ``model_instance_device_id``.

    Raises:
        ModelFilesError: This environment's torch cannot use a GPU, or finds none.
    """
    if torch.version.cuda is None:
        raise ModelFilesError(
            f"the instance is of KIND_GPU but torch {torch.__version__} cannot use a GPU: "
            "deploy with the GPU environment or set KIND_CPU in config.pbtxt's instance_group"
        )
    if not torch.cuda.is_available():
        raise ModelFilesError(
            f"the instance is of KIND_GPU but torch {torch.__version__} for CUDA "
            f"{torch.version.cuda} finds no usable GPU: the host's driver is too old for "
            "it (nvidia-smi), or the server was given no GPU (CUDA_VISIBLE_DEVICES)"
        )
    return f"cuda:{device_id}"


def _split(
    outputs: Mapping[str, NDArray[np.float32]], graphs: Sequence[EventGraph], card: ModelCard
) -> list[Outputs]:
    """Split a batch's outputs into the rows of each event."""
    rows: dict[str, list[int]] = {}
    for head in card.heads:
        if head.node == "event":
            rows[f"{head.output}_evt"] = list(range(len(graphs) + 1))
            continue
        for index, plane in enumerate(card.planes):
            sizes = (graph.plane_sizes[index] for graph in graphs)
            rows[f"{head.output}_{plane}"] = [0, *accumulate(sizes)]
    return [
        {name: outputs[name][ends[number] : ends[number + 1]] for name, ends in rows.items()}
        for number in range(len(graphs))
    ]
