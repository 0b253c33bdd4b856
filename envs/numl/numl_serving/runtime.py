"""From an event to its answer: a loaded model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from numl_formats.card import ModelCard
from numl_formats.cardfile import read_card
from numl_formats.repository import CARD_FILE
from numl_serving.answer import BatchResult, Outputs
from numl_serving.batches import Limits
from numl_serving.errors import ServingError, attempt, of_model_files
from numl_serving.event import Event
from numl_serving.native import NativeModel
from numl_serving.weights import read_weights

CPU = "cpu"


class _Engine(Protocol):
    """What runs the network."""

    def run(self, events: Sequence[Event]) -> BatchResult:
        """Answer each event."""


class Runtime:
    """A model that answers events. Not for use by several threads at once.

    Attributes:
        card: The model's card.
    """

    def __init__(self, card: ModelCard, engine: _Engine) -> None:
        self.card = card
        self._engine = engine

    @classmethod
    def load(
        cls,
        directory: Path | str,
        *,
        device: str = CPU,
        threads: int | None = None,
        limits: Limits | None = None,
    ) -> Runtime:
        """Load a model from its directory (``model.json`` and the weights it names).

        Args:
            directory: Where the files are.
            device: ``cpu``: the native library, which needs no torch. Else PyTorch runs the
                network, on ``cuda:N``, or on the CPU for ``torch-cpu``.
            threads: Intra-op threads of torch, for this whole process; None leaves them as they
                are.
            limits: The largest batch for PyTorch, by default that of `Limits`; the native library
                runs one event after the other.

        Raises:
            ModelFilesError: Files are missing, damaged, or do not fit together.
        """
        directory = Path(directory)
        with of_model_files():
            card = read_card(directory / CARD_FILE)
        weights = read_weights(directory, card)
        if device == CPU:
            return cls(card, _NativeEngine(card, weights))
        # Only here: nothing that serves on a CPU imports torch.
        from numl_serving.torch_runtime import TorchEngine

        name = device.removeprefix("torch-")
        return cls(card, TorchEngine(card, weights, name, threads, limits or Limits()))

    def infer(self, event: Event) -> Outputs:
        """Answer one event.

        Returns:
            By name, the tensors of ``card.outputs``. A plane's rows are in the order of its hits
            in the event.

        Raises:
            EventError: The event would unfold into too many edges, or its numbers are too large
                for the network's arithmetic.
            NetworkError: Something unforeseen.
            DeviceLostError: The GPU cannot be used by this process any more.
        """
        (outputs,) = self.infer_batch([event]).outputs
        if isinstance(outputs, ServingError):
            raise outputs
        return outputs

    def infer_batch(self, events: Sequence[Event]) -> BatchResult:
        """Answer several events; an event's error is its own result."""
        return self._engine.run(events)


class _NativeEngine:
    """The native library: from the columns of an event to its answer in one call."""

    def __init__(self, card: ModelCard, weights: Mapping[str, NDArray[np.float32]]) -> None:
        self._model: Any = NativeModel(card, weights)

    def run(self, events: Sequence[Event]) -> BatchResult:
        start = time.perf_counter()
        graphs_s = 0.0
        outputs: list[Outputs | ServingError] = []
        for event in events:
            answered = attempt(self._model.timed, event)
            if isinstance(answered, ServingError):
                outputs.append(answered)
            else:
                outputs.append(answered[0])
                graphs_s += answered[1]
        whole_s = time.perf_counter() - start
        return BatchResult(outputs, len(events), graphs_s, whole_s - graphs_s)
