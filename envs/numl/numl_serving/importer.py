"""Turn a training checkpoint into model files: weights, model card and golden answer."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from numl_serving.checkpoint import Checkpoint, read_checkpoint
from numl_serving.errors import CheckpointError
from numl_serving.event import PLANES, Event
from numl_serving.golden import Golden, read_event, write_golden
from numl_serving.modelcard import (
    CARD_FILE,
    GOLDEN_FILE,
    WEIGHTS_FILE,
    ModelCard,
    PlaneNormalisation,
    Source,
    WeightsFile,
    dump_card,
    parse_card,
)
from numl_serving.networks.variants import Spec, canonical_name, is_served, recognise
from numl_serving.normalisation import normalisation_in, read_normalisation
from numl_serving.runtime import Runtime, hyperparameters_of

DEFAULT_ITERATIONS = 5
"""Message-passing iterations of nugraph's models where a checkpoint does not tell."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to import, and what the checkpoint itself does not tell.

    Attributes:
        checkpoint: The checkpoint file.
        architecture: nugraph3 or nugraph2.
        out: Directory for the model files; it need not exist.
        norm: File with the feature normalisation, or None where the checkpoint has it.
        semantic_classes: Class names in the order of the outputs, or None for the checkpoint's.
        event_classes: The same for the event head.
        event: A golden file (npz) whose event is answered anew, or None for the event of the
            golden file that ``out`` already has, if any.
        spacepoint_positions: Whether the network was trained with spacepoint positions.
        demo: Whether these are demonstration weights.
        description: One line for people.
        accuracy: What was measured, for the card.
    """

    checkpoint: Path
    architecture: str
    out: Path
    norm: Path | None = None
    semantic_classes: tuple[str, ...] | None = None
    event_classes: tuple[str, ...] | None = None
    event: Path | None = None
    spacepoint_positions: bool = False
    demo: bool = False
    description: str = ""
    accuracy: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What an import found and wrote.

    Attributes:
        card: The model card.
        parameters: Number of weights that the network uses; shared ones count once.
        ignored_weights: Names of the state dict that inference does not use.
        ignored_globals: What the checkpoint's pickle named and nobody looked up.
        facts: Lightning's version, epoch and step of the checkpoint.
        notes: What was assumed.
        files: The files that were written.
    """

    card: ModelCard
    parameters: int
    ignored_weights: tuple[str, ...]
    ignored_globals: tuple[str, ...]
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    files: tuple[Path, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON can hold it."""
        return {
            "card": json.loads(dump_card(self.card)),
            "parameters": self.parameters,
            "reads_spacepoint_positions": reads_positions(self.card),
            "ignored_weights": list(self.ignored_weights),
            "ignored_globals": list(self.ignored_globals),
            "facts": dict(self.facts),
            "notes": list(self.notes),
            "files": [str(path) for path in self.files],
        }


def import_checkpoint(request: Request) -> Report:
    """Read a checkpoint, and write the model files all together or not at all.

    The files are written beside the directory, loaded once as a server would load them, and only
    then moved into place.

    Raises:
        CheckpointError: The checkpoint cannot be read or lacks something that was not given.
        ModelFilesError: Its weights are of no known network, or a given file is not usable.
        OSError: The files cannot be written.
    """
    out = request.out.resolve()
    event = _golden_event(request)
    checkpoint = read_checkpoint(request.checkpoint)
    state, ignored = _served_weights(checkpoint)
    spec = recognise({name: tuple(t.shape) for name, t in state.items()}, request.architecture)
    _check_shared(state, spec)
    notes: list[str] = []
    weights = safetensors.torch.save(state)
    card = _card(request, checkpoint, spec, hashlib.sha256(weights).hexdigest(), notes)
    with _staging(out) as staging:
        (staging / WEIGHTS_FILE).write_bytes(weights)
        (staging / CARD_FILE).write_text(dump_card(card), encoding="utf-8")
        names = [WEIGHTS_FILE, CARD_FILE]
        runtime = Runtime.load(staging, threads=None)
        if event is not None:
            write_golden(staging / GOLDEN_FILE, Golden(event, dict(runtime.infer(event))))
            names.append(GOLDEN_FILE)
        _move_into_place(staging, out, names)
    return Report(
        card=card,
        parameters=sum(tensor.numel() for tensor in _distinct(state, spec)),
        ignored_weights=ignored,
        ignored_globals=checkpoint.ignored_globals,
        facts=checkpoint.facts,
        notes=tuple(notes),
        files=tuple(out / name for name in names),
    )


def reads_positions(network: ModelCard | Spec) -> bool:
    """Tell whether a network has an encoder for spacepoint positions."""
    return (network.architecture, network.variant) == ("nugraph3", "24.7.1")


def _golden_event(request: Request) -> Event | None:
    if request.event is not None:
        return read_event(request.event)
    present = request.out / GOLDEN_FILE
    return read_event(present) if present.exists() else None


def _served_weights(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    state = {
        canonical_name(name): tensor.to(torch.float32)
        for name, tensor in checkpoint.state.items()
        if is_served(name)
    }
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise CheckpointError(
                f"{checkpoint.name}: weight {name!r} has NaN or infinite values: "
                "take a checkpoint from before the training diverged"
            )
    return state, tuple(name for name in checkpoint.state if not is_served(name))


def _shared_names(state: Mapping[str, Tensor], spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the weights that 24.7.1's NuGraph3 holds once per plane, each with plane u's."""
    if (spec.architecture, spec.variant) != ("nugraph3", "24.7.1"):
        return
    for name in state:
        head, found, rest = name.partition(".convs.<")
        edge_type, _, tail = rest.partition(">")
        nodes = edge_type.split("___")
        if found and not set(PLANES).isdisjoint(nodes):
            first = "___".join("u" if node in PLANES else node for node in nodes)
            yield name, f"{head}.convs.<{first}>{tail}"


def _check_shared(state: Mapping[str, Tensor], spec: Spec) -> None:
    for name, first in _shared_names(state, spec):
        if not torch.equal(state[name], state[first]):
            raise CheckpointError(
                f"weights {name!r} and {first!r} differ, but this NuGraph3 shares them among "
                "the planes: this mixture of variants cannot be served"
            )


def _distinct(state: Mapping[str, Tensor], spec: Spec) -> list[Tensor]:
    copies = {name for name, first in _shared_names(state, spec) if name != first}
    return [tensor for name, tensor in state.items() if name not in copies]


def _card(
    request: Request, checkpoint: Checkpoint, spec: Spec, sha256: str, notes: list[str]
) -> ModelCard:
    found = checkpoint.hyper_parameters
    if (planes := found.get("planes")) not in (None, list(PLANES)):
        raise CheckpointError(
            f"{checkpoint.name}: its planes are {planes}, only {list(PLANES)} can be served"
        )
    iterations = found.get("num_iters")
    if not isinstance(iterations, int) or iterations < 1:
        iterations = DEFAULT_ITERATIONS
        notes.append(f"number of iterations not in the checkpoint: took {iterations}")
    if reads_positions(spec):
        kind = "with" if request.spacepoint_positions else "without"
        notes.append(f"the network reads spacepoint positions: served {kind} them")
    card = ModelCard(
        architecture=spec.architecture,
        variant=spec.variant,
        hyperparameters=hyperparameters_of(spec) | {"iterations": iterations},
        semantic_classes=_classes(
            "semantic", request.semantic_classes, found, spec.semantic_classes, checkpoint.name
        ),
        event_classes=_classes(
            "event", request.event_classes, found, spec.event_classes, checkpoint.name
        )
        if "event" in spec.heads
        else None,
        heads=spec.heads,
        normalisation=_normalisation(request, checkpoint),
        weights=WeightsFile(WEIGHTS_FILE, sha256),
        source=Source(checkpoint.name, checkpoint.sha256),
        demo=request.demo,
        spacepoint_positions=request.spacepoint_positions,
        description=request.description,
        accuracy=request.accuracy,
    )
    return parse_card(json.loads(dump_card(card)))


def _classes(
    head: str,
    given: tuple[str, ...] | None,
    found: Mapping[str, Any],
    outputs: int,
    checkpoint: str,
) -> tuple[str, ...]:
    option = f"--{head}-classes"
    names = list(given) if given is not None else found.get(f"{head}_classes")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(
            f"{checkpoint}: no names of its {head} classes in it: pass {option} "
            "(of scripts/import_checkpoint.py, whose folder can be served)"
        )
    # Without its head the number of classes is not in the weights.
    if outputs not in (0, len(names)):
        raise CheckpointError(
            f"{checkpoint}: it has {outputs} {head} classes but there are {len(names)} names "
            f"({', '.join(names)}): pass {option} with one name for each"
        )
    return tuple(names)


def _normalisation(request: Request, checkpoint: Checkpoint) -> dict[str, PlaneNormalisation]:
    if request.norm is not None:
        return read_normalisation(request.norm)
    found = normalisation_in(checkpoint.hyper_parameters.get("norm"))
    if found is None:
        raise CheckpointError(
            f"{checkpoint.name}: no feature normalisation in it: pass --norm with the processed "
            "HDF5 file of the training, or JSON with mean and std of each plane"
        )
    return found


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Make a directory beside the given one, and remove what is left of it in the end."""
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = out.parent / f".{out.name}.{os.getpid()}.{secrets.token_hex(4)}"
    staging.mkdir()
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move_into_place(staging: Path, out: Path, names: Sequence[str]) -> None:
    try:
        # One step where the directory is new or empty.
        staging.rename(out)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    else:
        return
    previous = staging / "previous"
    previous.mkdir()
    try:
        for name in names:
            if os.path.lexists(out / name):
                (out / name).rename(previous / name)
            (staging / name).rename(out / name)
    except BaseException:
        # All of the old files again. A kill within these lines leaves weights whose sha256 is
        # not that of the card: a server refuses them.
        for name in names:
            if not (staging / name).exists():
                (out / name).unlink(missing_ok=True)
            if os.path.lexists(previous / name):
                (previous / name).rename(out / name)
        raise
