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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from numl_formats.card import (
    MAX_ITERATIONS,
    Head,
    ModelCard,
    PlaneNormalisation,
    Source,
    WeightsFile,
)
from numl_formats.cardfile import dump_card, parse_card
from numl_formats.contract import Schema
from numl_formats.errors import FormatError
from numl_formats.golden import GoldenEvent, read_inputs, write_golden
from numl_formats.repository import CARD_FILE, GOLDEN_FILE, WEIGHTS_FILE
from numl_serving.checkpoint import Checkpoint, read_checkpoint
from numl_serving.errors import CheckpointError, EventError, ModelFilesError, of_model_files
from numl_serving.event import Event
from numl_serving.example import example_event
from numl_serving.normalisation import normalisation_in, read_metadata, read_normalisation
from numl_serving.recognition import (
    DEFAULT_ITERATIONS,
    Recognised,
    Weights,
    is_served,
    modern_name,
    recognise,
    without_empty_extension,
)
from numl_serving.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Request:
    """What to import, and what the checkpoint itself does not say.

    Attributes:
        checkpoint: The checkpoint file.
        architecture: nugraph3 or nugraph2.
        out: Directory for the model files; it need not exist.
        norm: File with the feature normalisation, or None where the checkpoint has it or needs
            none. A processed HDF5 file also gives planes and classes, where the checkpoint does
            not.
        planes: Names of the planes in the order of their numbers, or None for the checkpoint's.
        features: Names of the hit features in the network's order, or None for nugraph's own.
        position_scale: Factors for wire and time, or None for those of nugraph.
        classes: Class names in the order of the outputs, by the name of the head; the
            checkpoint's where there are none.
        event: A golden file (npz) whose event is answered again, or None for the event of the
            golden file that ``out`` already has, or for one made up.
        spacepoint_positions: Whether the network was trained with spacepoint positions.
        demo: Whether these are demonstration weights.
        description: One line for people.
        accuracy: What was measured, for the card.
    """

    checkpoint: Path
    architecture: str
    out: Path
    norm: Path | None = None
    planes: tuple[str, ...] | None = None
    features: tuple[str, ...] | None = None
    position_scale: tuple[float, float] | None = None
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
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
        parameters: Numbers in the weights file.
        ignored_weights: Names of the state dict that inference does not use.
        ignored_globals: What the checkpoint's pickle named, none of which was looked up.
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
        """Return the report as JSON-serialisable data."""
        return {
            "card": json.loads(dump_card(self.card)),
            "parameters": self.parameters,
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
        ModelFilesError: Its weights match no known network, or a given file is not usable.
        OSError: The files cannot be written.
    """
    out = request.out.resolve()
    checkpoint = read_checkpoint(request.checkpoint)
    state = _served_weights(checkpoint)
    told = _told(request, checkpoint)
    notes: list[str] = []
    found = _recognise(request, state, told, notes)
    if request.features is None and (less := without_empty_extension(state, found)) is not None:
        notes.append(
            "the feature extension was zero in the training, as nugraph's main branch leaves it: "
            "served without it"
        )
        state = less
        found = _recognise(request, state, told, [])
    if found.unused:
        notes.append("the network has no instance head: its instance embedding is not used")
    with np.errstate(over="ignore", invalid="ignore"):
        weights = found.weights(state)
    _check_finite(checkpoint, weights)
    # The library writes memory as it is laid out.
    content = safetensors.numpy.save({n: np.asarray(a, order="C") for n, a in weights.items()})
    card = _card(request, checkpoint, found, told, notes)
    card = replace(card, weights=WeightsFile(WEIGHTS_FILE, hashlib.sha256(content).hexdigest()))
    with of_model_files(""):
        card = parse_card(json.loads(dump_card(card)))
    event = _golden_event(request, card.schema)
    with _staging(out) as staging:
        (staging / WEIGHTS_FILE).write_bytes(content)
        (staging / CARD_FILE).write_text(dump_card(card), encoding="utf-8")
        try:
            answer = Runtime.load(staging).infer(event)
        except EventError as error:
            raise CheckpointError(
                f"{checkpoint.name}: its network gives no answer to the reference event ({error}): "
                "use another checkpoint, or pass --event with an event like the training's"
            ) from None
        write_golden(staging / GOLDEN_FILE, GoldenEvent(event.tensors(), answer))
        names = [WEIGHTS_FILE, CARD_FILE, GOLDEN_FILE]
        _move_into_place(staging, out, names)
    return Report(
        card=card,
        parameters=sum(array.size for array in weights.values()),
        ignored_weights=tuple(
            name for name in checkpoint.state if not is_served(name) or name in found.unused
        ),
        ignored_globals=checkpoint.ignored_globals,
        facts=checkpoint.facts,
        notes=tuple(notes),
        files=tuple(out / name for name in names),
    )


def _golden_event(request: Request, schema: Schema) -> Event:
    if request.event is not None:
        return _event_in(request.event, schema)
    if (present := request.out / GOLDEN_FILE).exists():
        try:
            return _event_in(present, schema)
        except ModelFilesError:
            pass  # the previous weights were for another detector
    return example_event(schema)


def _event_in(path: Path, schema: Schema) -> Event:
    try:
        return Event.from_tensors(read_inputs(path), schema)
    except (FormatError, EventError) as error:
        raise ModelFilesError(f"{path} has no event for this model: {error}") from None


def _served_weights(checkpoint: Checkpoint) -> dict[str, NDArray[np.float32]]:
    with np.errstate(over="ignore"):
        state = {
            modern_name(name): array.astype(np.float32)
            for name, array in checkpoint.state.items()
            if is_served(name)
        }
    _check_finite(checkpoint, state)
    return state


def _check_finite(checkpoint: Checkpoint, weights: Weights) -> None:
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise CheckpointError(
                f"{checkpoint.name}: weight {name!r} has NaN or infinite values: "
                "use a checkpoint from before the training diverged"
            )


def _told(request: Request, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the checkpoint's own metadata, completed from the processed file."""
    metadata = {} if request.norm is None else read_metadata(request.norm)
    return metadata | {n: v for n, v in checkpoint.hyper_parameters.items() if v is not None}


def _names(value: Any) -> tuple[str, ...] | None:
    # Configurations and results list them with commas.
    fits = isinstance(value, list) and all(isinstance(n, str) and "," not in n for n in value)
    return tuple(value) if fits and value else None


def _recognise(
    request: Request, state: Weights, told: Mapping[str, Any], notes: list[str]
) -> Recognised:
    iterations = told.get("num_iters")
    if iterations is None:
        iterations = DEFAULT_ITERATIONS
        notes.append(f"number of iterations not in the checkpoint: assumed {iterations}")
    elif not isinstance(iterations, int) or not 1 <= iterations <= MAX_ITERATIONS:
        wanted = f"expected a whole number from 1 to {MAX_ITERATIONS}"
        raise CheckpointError(f"{request.checkpoint}: num_iters is {iterations!r}: {wanted}")
    shapes = {name: array.shape for name, array in state.items()}
    planes = request.planes or _names(told.get("planes"))
    found = recognise(shapes, request.architecture, planes, iterations)
    if planes is None:
        notes.append(f"planes not in the checkpoint: assumed {', '.join(found.planes)}")
    return found


def _card(
    request: Request,
    checkpoint: Checkpoint,
    found: Recognised,
    told: Mapping[str, Any],
    notes: list[str],
) -> ModelCard:
    """Return the card without its weights file."""
    features, scale = _hit_features(request, checkpoint, found, told, notes)
    if found.network.nexus_start == "position":
        kind = "with" if request.spacepoint_positions else "without"
        notes.append(f"the network reads spacepoint positions: served {kind} them")
    return ModelCard(
        network=found.network,
        planes=found.planes,
        hit_features=features,
        position_scale=scale,
        spacepoint_positions=request.spacepoint_positions,
        normalisation=_normalisation(request, checkpoint, found, notes),
        heads=tuple(
            _with_classes(head, request.classes.get(head.name), told, checkpoint.name)
            if head.name in found.classified
            else head
            for head in found.heads
        ),
        clustering=found.clustering,
        weights=WeightsFile(WEIGHTS_FILE, ""),
        source=Source(checkpoint.name, checkpoint.sha256),
        demo=request.demo,
        description=request.description,
        accuracy=request.accuracy,
    )


def _hit_features(
    request: Request,
    checkpoint: Checkpoint,
    found: Recognised,
    told: Mapping[str, Any],
    notes: list[str],
) -> tuple[tuple[str, ...], tuple[float, float]]:
    """Return hit features and position scale: as requested, else nugraph's defaults."""
    names, count, generation = request.features, found.features, told.get("gen")
    if names is None:
        graphs = [g for g in found.generation.graphs if generation in (None, g.generation)]
        own = [g for g in graphs if len(g.features) == count]
        if not own:
            example = ",".join(found.generation.graphs[0].features)
            raise CheckpointError(
                f"{checkpoint.name}: its network takes {count} hit features but does not name "
                f"them: pass --features with {count} names in the network's order, like {example}"
            )
        scale = request.position_scale or own[0].position_scale
        names = own[0].features
        notes.append(f"hit features not named in the checkpoint: assumed {', '.join(names)}")
        for other in own[1:]:
            notes.append(f"they may also be {', '.join(other.features)}: pass --features if so")
    else:
        if len(names) != count:
            raise CheckpointError(
                f"{checkpoint.name}: its network takes {count} hit features but --features "
                f"names {len(names)} ({', '.join(names)})"
            )
        # Second-generation graphs have wire and time twice, and unscaled positions.
        second = generation == 2 if generation is not None else "local_wire" in names
        own = [g for g in found.generation.graphs if (g.generation == 2) == second]
        scale = request.position_scale or (own or found.generation.graphs)[0].position_scale
    if request.position_scale is None:
        notes.append(f"position scale not in the checkpoint: assumed {scale[0]:g}, {scale[1]:g}")
    return names, scale


def _with_classes(
    head: Head, given: tuple[str, ...] | None, told: Mapping[str, Any], checkpoint: str
) -> Head:
    option = f"--{head.name}-classes"
    names = given or _names(told.get(f"{head.name}_classes"))
    if names is None:
        raise CheckpointError(
            f"{checkpoint}: it does not name its {head.name} classes: pass {option} "
            "(of scripts/import_checkpoint.py, whose folder can be served)"
        )
    if len(names) != head.width:
        raise CheckpointError(
            f"{checkpoint}: it has {head.width} {head.name} classes but there are {len(names)} "
            f"names ({', '.join(names)}): pass {option} with one name for each"
        )
    return replace(head, classes=names)


def _normalisation(
    request: Request, checkpoint: Checkpoint, found: Recognised, notes: list[str]
) -> dict[str, PlaneNormalisation] | None:
    if found.generation.input_norm is not None:
        if request.norm is not None:
            notes.append("the network normalises hit features itself: that of --norm is not used")
        return None
    if request.norm is not None:
        return read_normalisation(request.norm, found.planes, found.features)
    own = checkpoint.hyper_parameters.get("norm")
    normalisation = normalisation_in(own, found.planes, found.features)
    if normalisation is None:
        raise CheckpointError(
            f"{checkpoint.name}: it has no feature normalisation: pass --norm with the processed "
            "HDF5 file of the training, or JSON with mean and std of each plane"
        )
    return normalisation


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Create a sibling directory; remove whatever is left of it at the end."""
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = out.parent / f".{out.name}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        staging.mkdir()  # here, where a signal after it finds the way to its removal
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
        # Put all old files back. A kill within these lines leaves weights whose sha256 is
        # not that of the card: a server refuses them.
        for name in names:
            if not (staging / name).exists():
                (out / name).unlink(missing_ok=True)
            if os.path.lexists(previous / name):
                (previous / name).rename(out / name)
        raise
