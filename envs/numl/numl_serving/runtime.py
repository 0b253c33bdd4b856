"""From an event to its answer: a loaded model."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from numl_serving.allocator import (
    BATCHES_BETWEEN_RETURNS,
    keep_freed_memory,
    return_freed_memory,
)
from numl_serving.compiled import CompiledError, CompiledNetwork
from numl_serving.errors import EventError, ModelFilesError
from numl_serving.event import PLANES, Event
from numl_serving.golden import disagreements
from numl_serving.graph import EventGraph, build_graph
from numl_serving.iteration import COMPANION, Network
from numl_serving.modelcard import CARD_FILE, ModelCard, read_card
from numl_serving.networks.common import GraphBatch, collate
from numl_serving.networks.nugraph2 import NuGraph2
from numl_serving.networks.nugraph3 import NuGraph3
from numl_serving.networks.variants import Spec, recognise
from numl_serving.transfer import Transfer, transfer_to

Outputs: TypeAlias = dict[str, NDArray[np.float32]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The answer to a batch.

    Attributes:
        outputs: Per event, in the order of the request, the outputs by name.
        preprocess_s: Seconds spent on building the graphs.
        network_s: Seconds spent in the network, transfers to and from the device included.
    """

    outputs: list[Outputs]
    preprocess_s: float
    network_s: float


class Runtime:
    """A model that answers events. Not for use by several threads at once.

    Attributes:
        card: The model's card.
    """

    def __init__(self, card: ModelCard, network: Network, device: torch.device) -> None:
        self.card = card
        self._network = network.to(device).eval()
        self._transfer = transfer_to(device)
        self._compiled: CompiledNetwork | None = None
        self._batches = 0

    @property
    def is_compiled(self) -> bool:
        """Whether the network's iterations run compiled."""
        return self._compiled is not None

    @classmethod
    def load(
        cls,
        directory: Path | str,
        *,
        device: str = "cpu",
        threads: int | None = 1,
        compiled: Path | str | None = None,
    ) -> Runtime:
        """Load a model from its directory (``model.json`` and the weights it names).

        Args:
            directory: Where the files are.
            device: Where the network runs, as torch names it.
            threads: Intra-op threads of torch, for this whole process; None leaves them as they
                are.
            compiled: Folder in which `numl_serving.compile` has put compiled iterations; where it
                has none for this model and device, the network runs without, and a line in the
                log says why.

        Raises:
            ModelFilesError: Files are missing, damaged, or do not fit together.
        """
        card, network = load_network(Path(directory))
        if threads is not None:
            torch.set_num_threads(threads)
        keep_freed_memory()
        place = torch.device(device)
        runtime = cls(card, network, place)
        if compiled is not None:
            try:
                found = CompiledNetwork.load(network, Path(compiled), place)
                _check_compiled(found, network, card, runtime._transfer)
                runtime._compiled = found
            except CompiledError as error:
                _log.warning("%s runs uncompiled, which is slower: %s", directory, error)
        return runtime

    def infer(self, event: Event) -> Outputs:
        """Answer one event.

        Returns:
            By output name, float32: ``x_semantic_{u,v,y}`` ``[hits in plane, classes]``,
            ``x_filter_{u,v,y}`` ``[hits in plane]`` and, as far as the model has these heads,
            ``e_evt`` ``[1, classes]``, ``v_evt`` ``[1, 3]``. A plane's rows are in the order of
            its hits in the event. NuGraph3 of 24.7.1 gives probabilities of the classes, the
            others raw scores, as nugraph leaves them in the graph object.

        Raises:
            EventError: The event's numbers are too large for the network's arithmetic.
        """
        return self.infer_batch([event]).outputs[0]

    def infer_batch(self, events: Sequence[Event]) -> BatchResult:
        """Answer several events in one pass through the network.

        Raises:
            EventError: As `infer`; no event of the batch is answered then.
        """
        if not events:
            return BatchResult([], 0.0, 0.0)
        self._batches += 1
        if self._batches % BATCHES_BETWEEN_RETURNS == 0:
            return_freed_memory()
        start = time.perf_counter()
        graphs = [build_graph(e, position_scale=self.card.position_scale) for e in events]
        if self._compiled is not None:
            graphs.append(COMPANION)
        batch = collate(graphs, self.card.normalisation, positions=self.card.spacepoint_positions)
        built = time.perf_counter()
        outputs = answer(self._compiled or self._network, batch, self._transfer)
        answered = time.perf_counter()
        _check_finite(outputs, events)
        answers = _split(outputs, graphs, len(events))
        return BatchResult(answers, built - start, answered - built)


def answer(
    network: Callable[[GraphBatch], Mapping[str, Tensor]],
    batch: GraphBatch,
    transfer: Transfer | None,
) -> Outputs:
    """Return a network's answer to a batch, both in the host's memory.

    Args:
        network: The network, on its device.
        batch: The batch.
        transfer: The way to the device; None: it is the CPU.
    """
    with torch.inference_mode():
        if transfer is None:
            return {name: tensor.numpy() for name, tensor in network(batch).items()}
        with transfer.stream():
            return transfer.fetch(network(transfer.to_device(batch)))


def load_network(directory: Path) -> tuple[ModelCard, Network]:
    """Read a model's card and make its network.

    Raises:
        ModelFilesError: Files are missing, damaged, or do not fit together.
    """
    card = read_card(directory / CARD_FILE)
    return card, build_network(card, _read_weights(directory, card))


def build_network(card: ModelCard, state: Mapping[str, Tensor]) -> Network:
    """Make the network of a card from its weights.

    Raises:
        ModelFilesError: The weights are not those that the card describes.
    """
    spec = recognise({name: tuple(t.shape) for name, t in state.items()}, card.architecture)
    hyperparameters = hyperparameters_of(spec)
    iterations = card.hyperparameters.get("iterations")
    described = dict(card.hyperparameters) | {"iterations": None}
    if (
        iterations is None
        or described != hyperparameters | {"iterations": None}
        or spec.variant != card.variant
        or set(spec.heads) != set(card.heads)
        or spec.semantic_classes not in (0, len(card.semantic_classes))
        or spec.event_classes != len(card.event_classes or ())
    ):
        raise ModelFilesError(
            f"the weights ({spec}) are not those that {CARD_FILE} describes: import them again"
        )
    if spec.architecture == "nugraph2":
        return NuGraph2(spec, state, iterations)
    return NuGraph3(spec, state, iterations)


def hyperparameters_of(spec: Spec) -> dict[str, int]:
    """Return the hyper-parameters of a card that the weights alone tell."""
    widths = {
        "planar_features": spec.planar_features,
        "nexus_features": spec.nexus_features,
        "interaction_features": spec.interaction_features,
    }
    return {name: width for name, width in widths.items() if width}


def _read_weights(directory: Path, card: ModelCard) -> dict[str, Tensor]:
    path = directory / card.weights.file
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelFilesError(
            f"{path} cannot be read ({error.strerror}): import the checkpoint again"
        ) from None
    if hashlib.sha256(content).hexdigest() != card.weights.sha256:
        raise ModelFilesError(
            f"{path} is not the file that {CARD_FILE} belongs to (its sha256 differs): "
            "import the checkpoint again"
        )
    try:
        return safetensors.torch.load(content)
    except SafetensorError as error:
        raise ModelFilesError(f"{path} cannot be read ({error}): import it again") from None


def _check_compiled(
    compiled: CompiledNetwork, network: Network, card: ModelCard, transfer: Transfer | None
) -> None:
    """Let a compiled network answer a small event, and compare."""
    batch = collate([COMPANION, COMPANION], card.normalisation)
    expected = answer(network, batch, transfer)
    try:
        actual = answer(compiled, batch, transfer)
    except RuntimeError as error:
        line = str(error).strip().splitlines()[0]
        raise CompiledError(f"the compiled network fails ({line})") from None
    if faults := disagreements(expected, actual):
        raise CompiledError(f"the compiled network answers wrongly ({faults[0]})")


def _check_finite(outputs: Mapping[str, NDArray[Any]], events: Sequence[Event]) -> None:
    if all(np.isfinite(array).all() for array in outputs.values()):
        return
    columns = {
        f"hit_table.{name}": np.abs(getattr(event.hits, name).astype(np.float64))
        for event in events
        for name in ("local_time", "integral", "rms")
        if len(event.hits)
    }
    largest, where = "spacepoint_table.position", ""
    if columns:
        largest = max(columns, key=lambda name: columns[name].max())
        row = int(columns[largest].argmax())
        where = f" has magnitude {columns[largest][row]:.3g} in row {row}"
    raise EventError(
        f"{largest}{where}: numbers of this size exceed the network's float32 arithmetic"
    )


def _split(outputs: Outputs, graphs: Sequence[EventGraph], events: int) -> list[Outputs]:
    """Give each of the first so many events its rows of a batch's outputs."""
    rows = {
        plane: [0, *accumulate(len(graph.planes[index].features) for graph in graphs)]
        for index, plane in enumerate(PLANES)
    }
    one_each = range(len(graphs) + 1)
    split: list[Outputs] = [{} for _ in range(events)]
    for name, array in outputs.items():
        begin = rows.get(name[-1], one_each)
        for number, answer in enumerate(split):
            answer[name] = array[begin[number] : begin[number + 1]]
    return split
