"""The model card: everything a server must know of a model besides its weights (``model.json``)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from numl_serving.errors import ModelFilesError
from numl_serving.event import PLANES

FORMAT = 1
CARD_FILE = "model.json"
WEIGHTS_FILE = "weights.safetensors"
GOLDEN_FILE = "golden.npz"

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "nugraph3": ("24.7.1", "per-plane"),
    "nugraph2": ("24.7.1",),
}
"""The architectures that can be served, and the variants of each."""

HEADS = ("semantic", "filter", "event", "vertex")

_FEATURES = 4


class PlaneNormalisation(NamedTuple):
    """Normalisation of a plane's hit features: ``(x - mean) / std`` for each of them.

    The features are wire position (cm), time position (cm), integral (ADC counts x ticks) and
    rms (ticks), in this order.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """The file with the weights, beside the card, and the sha256 of its content."""

    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Source:
    """The checkpoint the weights come from: its file name and its sha256."""

    checkpoint: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The content of ``model.json``.

    Attributes:
        architecture: One of `ARCHITECTURES`.
        variant: One of the architecture's variants.
        hyperparameters: Widths and number of iterations, as the networks take them.
        semantic_classes: Names, in the order of the network's outputs.
        event_classes: Names, or None without an event head.
        heads: The decoders that are there, a part of `HEADS`.
        normalisation: By plane name.
        weights: The weights file.
        source: The checkpoint that was imported.
        demo: True for weights that were trained on simulated events for demonstration only.
        position_scale: Factors that turn wire number and time tick into cm.
        spacepoint_positions: Whether the network was trained with spacepoint positions.
        planes: The wire planes.
        description: One line for people.
        accuracy: What was measured on events not used in training, or None.
    """

    architecture: str
    variant: str
    hyperparameters: Mapping[str, int]
    semantic_classes: tuple[str, ...]
    event_classes: tuple[str, ...] | None
    heads: tuple[str, ...]
    normalisation: Mapping[str, PlaneNormalisation]
    weights: WeightsFile
    source: Source
    demo: bool = False
    position_scale: tuple[float, float] = (0.3, 0.055)
    spacepoint_positions: bool = False
    planes: tuple[str, ...] = PLANES
    description: str = ""
    accuracy: Mapping[str, Any] | None = field(default=None)


def dump_card(card: ModelCard) -> str:
    """Return the text of ``model.json``."""
    content = {"format": FORMAT} | asdict(card)
    content["normalisation"] = {
        plane: {"mean": list(norm.mean), "std": list(norm.std)}
        for plane, norm in card.normalisation.items()
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def read_card(path: Path) -> ModelCard:
    """Read ``model.json``.

    Raises:
        ModelFilesError: The file is missing, is not JSON, or has missing, unknown or wrong fields.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFilesError(
            f"{path} cannot be read ({error.strerror}): import the checkpoint"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ModelFilesError(
            f"{path} is not JSON ({error}): import the checkpoint again"
        ) from None
    try:
        return parse_card(content)
    except ModelFilesError as error:
        raise ModelFilesError(f"{path}: {error}") from None


def parse_card(content: Any) -> ModelCard:
    """Make a card from the decoded JSON, checking every field.

    Raises:
        ModelFilesError: Names the field, what is wrong with it and what is expected.
    """
    if not isinstance(content, dict):
        raise ModelFilesError("a JSON object is needed")
    version = content.get("format")
    if version != FORMAT:
        raise ModelFilesError(f"format is {version!r}, this program reads {FORMAT}")
    unknown = sorted(content.keys() - _READERS.keys() - {"format"})
    missing = sorted(_READERS.keys() - content.keys())
    if missing or unknown:
        raise ModelFilesError(f"missing fields: {missing}, unknown fields: {unknown}")
    card = ModelCard(**{name: read(content[name], name) for name, read in _READERS.items()})
    _check_consistency(card)
    return card


def _check_consistency(card: ModelCard) -> None:
    variants = ARCHITECTURES.get(card.architecture)
    if variants is None or card.variant not in variants:
        supported = ", ".join(f"{name} ({', '.join(v)})" for name, v in ARCHITECTURES.items())
        raise ModelFilesError(
            f"architecture {card.architecture!r} with variant {card.variant!r} cannot be served: "
            f"supported are {supported}"
        )
    if card.planes != PLANES:
        raise ModelFilesError(f"planes are {list(card.planes)}: only {list(PLANES)} can be served")
    if set(card.normalisation) != set(PLANES):
        raise ModelFilesError(f"normalisation needs exactly the planes {list(PLANES)}")
    unknown = sorted(set(card.heads) - set(HEADS))
    if unknown or not card.heads or len(set(card.heads)) < len(card.heads):
        raise ModelFilesError(f"heads are {list(card.heads)}: a part of {list(HEADS)} is needed")
    if ("event" in card.heads) != (card.event_classes is not None):
        raise ModelFilesError("event_classes are needed with an event head, and only then")
    if Path(card.weights.file).name != card.weights.file:
        raise ModelFilesError(f"weights.file is {card.weights.file!r}: a plain file name is needed")


def normalisation_from(content: Any, name: str) -> dict[str, PlaneNormalisation]:
    """Read ``{"u": {"mean": [4], "std": [4]}, ...}``.

    Raises:
        ModelFilesError: Planes or numbers are missing, or a standard deviation is not positive.
    """
    if not isinstance(content, dict) or set(content) != set(PLANES):
        raise ModelFilesError(f"{name} needs exactly the planes {list(PLANES)}")
    return {plane: _plane_normalisation(content[plane], f"{name}.{plane}") for plane in PLANES}


def _plane_normalisation(content: Any, name: str) -> PlaneNormalisation:
    if not isinstance(content, dict) or set(content) != {"mean", "std"}:
        raise ModelFilesError(f"{name} needs mean and std")
    mean = _numbers(content["mean"], f"{name}.mean")
    std = _numbers(content["std"], f"{name}.std")
    if len(mean) != _FEATURES or len(std) != _FEATURES:
        raise ModelFilesError(f"{name} needs {_FEATURES} means and standard deviations")
    if min(std) <= 0:
        raise ModelFilesError(f"{name}.std is {list(std)}: it must be positive")
    return PlaneNormalisation(mean, std)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ModelFilesError(f"{name} is {value!r}: a text is needed")
    return value


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ModelFilesError(f"{name} is {value!r}: true or false is needed")
    return value


def _texts(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ModelFilesError(f"{name} is {value!r}: a list of texts is needed")
    return tuple(_text(item, name) for item in value)


def _optional_texts(value: Any, name: str) -> tuple[str, ...] | None:
    return None if value is None else _texts(value, name)


def _numbers(value: Any, name: str) -> tuple[float, ...]:
    numeric = isinstance(value, list) and all(
        isinstance(item, int | float) and not isinstance(item, bool) and math.isfinite(item)
        for item in value
    )
    if not numeric:
        raise ModelFilesError(f"{name} is {value!r}: a list of finite numbers is needed")
    return tuple(float(item) for item in value)


def _scale(value: Any, name: str) -> tuple[float, float]:
    numbers = _numbers(value, name)
    if len(numbers) != 2:
        raise ModelFilesError(f"{name} is {value!r}: two factors (wire, time) are needed")
    return numbers[0], numbers[1]


def _sizes(value: Any, name: str) -> dict[str, int]:
    whole = isinstance(value, dict) and all(
        isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in value.values()
    )
    if not whole:
        raise ModelFilesError(f"{name} is {value!r}: positive whole numbers by name are needed")
    return dict(value)


def _two_texts(value: Any, name: str, keys: tuple[str, str]) -> tuple[str, str]:
    if not isinstance(value, dict) or set(value) != set(keys):
        raise ModelFilesError(f"{name} needs {keys[0]} and {keys[1]}")
    first, second = (_text(value[key], f"{name}.{key}") for key in keys)
    return first, second


def _weights(value: Any, name: str) -> WeightsFile:
    return WeightsFile(*_two_texts(value, name, ("file", "sha256")))


def _source(value: Any, name: str) -> Source:
    return Source(*_two_texts(value, name, ("checkpoint", "sha256")))


def _optional_object(value: Any, name: str) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise ModelFilesError(f"{name} is {value!r}: an object or null is needed")
    return value


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "architecture": _text,
    "variant": _text,
    "hyperparameters": _sizes,
    "semantic_classes": _texts,
    "event_classes": _optional_texts,
    "heads": _texts,
    "normalisation": normalisation_from,
    "weights": _weights,
    "source": _source,
    "demo": _flag,
    "position_scale": _scale,
    "spacepoint_positions": _flag,
    "planes": _texts,
    "description": _text,
    "accuracy": _optional_object,
}
