"""Read and write model cards: ``model.json``, checked field by field."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from numl_formats.card import (
    ACTIVATIONS,
    EMBEDDED_HEADS,
    KINDS,
    MAX_ITERATIONS,
    NEXUS_RULES,
    NEXUS_STARTS,
    NODES,
    Clustering,
    Embedding,
    Head,
    ModelCard,
    NetworkSpec,
    PlaneNormalisation,
    Source,
    WeightsFile,
)
from numl_formats.errors import FormatError, check_format

FORMAT = 2
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LARGEST = 1 << 20
_MOST = sys.float_info.max  # an integer of JSON may be larger


def dump_card(card: ModelCard) -> str:
    """Return the text of ``model.json``, including the tensors derived from the card."""
    content: dict[str, Any] = {"format": FORMAT} | asdict(card)
    if card.network.embedding is None:
        del content["network"]["embedding"]  # as it was before there were any
    if card.normalisation is not None:
        content["normalisation"] = {
            plane: {"mean": list(norm.mean), "std": list(norm.std)}
            for plane, norm in card.normalisation.items()
        }
    content["inputs"] = [tensor.as_json() for tensor in card.schema.tensors]
    content["outputs"] = [tensor.as_json() for tensor in card.outputs]
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def read_card(path: Path) -> ModelCard:
    """Read ``model.json``.

    Raises:
        FormatError: The file cannot be read, or is not a model card.
    """
    try:
        return card_of(path.read_bytes())
    except OSError as error:
        raise FormatError(f"{path} cannot be read ({error.strerror})") from None
    except FormatError as error:
        raise type(error)(f"{path}: {error}") from None


def card_of(content: bytes) -> ModelCard:
    """Return the card whose file holds ``content``; FormatError if it is none."""
    try:
        if len(content) > _LARGEST:
            raise ValueError(f"more than {_LARGEST} bytes")
        decoded = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}") from None
    return parse_card(decoded)


def parse_card(content: Any) -> ModelCard:
    """Make a card from the decoded JSON, checking every field.

    Raises:
        FormatError: Names the field, what is wrong with it and what is expected.
    """
    if not isinstance(content, dict) or "format" not in content:
        raise FormatError("not a model card")
    check_format(content["format"], (FORMAT,), "what wrote it")
    given = {name: value for name, value in content.items() if name != "format"}
    inputs, outputs = given.pop("inputs", None), given.pop("outputs", None)
    read = _Fields(given, "")
    normalisation = read.value("normalisation")
    clustering = read.optional("clustering")
    network = read.object("network")
    embedding = network.optional("embedding") if network.has("embedding") else None
    scale = read.numbers("position_scale")
    if len(scale) != 2:
        raise FormatError("position_scale needs two factors (wire, time)")
    card = ModelCard(
        network=NetworkSpec(
            kind=network.choice("kind", KINDS),
            generation=network.text("generation"),
            iterations=network.size("iterations", most=MAX_ITERATIONS),
            hit_width=network.size("hit_width"),
            nexus_width=network.size("nexus_width"),
            event_width=network.size("event_width", least=0),
            classes=network.size("classes"),
            nexus_start=network.choice("nexus_start", NEXUS_STARTS),
            nexus=network.choice("nexus", NEXUS_RULES),
            embedding=None if embedding is None else _embedding(embedding),
        ),
        planes=read.names("planes"),
        hit_features=read.names("hit_features"),
        position_scale=(scale[0], scale[1]),
        spacepoint_positions=read.flag("spacepoint_positions"),
        normalisation=normalisation,
        heads=tuple(_head(head) for head in read.objects("heads")),
        clustering=None if clustering is None else _clustering(clustering),
        weights=WeightsFile(*read.object("weights").pair("file", "sha256")),
        source=Source(*read.object("source").pair("checkpoint", "sha256")),
        demo=read.flag("demo"),
        description=read.text("description"),
        accuracy=read.value("accuracy"),
    )
    for each in (read, network):
        each.done()
    if normalisation is not None:
        normalisation = normalisation_from(
            normalisation, "normalisation", card.planes, len(card.hit_features)
        )
    card = replace(card, normalisation=normalisation)
    _check_consistency(card)
    for name, written, tensors in (
        ("inputs", inputs, card.schema.tensors),
        ("outputs", outputs, card.outputs),
    ):
        if written is not None and written != [tensor.as_json() for tensor in tensors]:
            raise FormatError(f"{name} do not match the rest of the card")
    return card


def normalisation_from(
    content: Any, name: str, planes: Sequence[str], features: int
) -> dict[str, PlaneNormalisation]:
    """Read ``{"u": {"mean": [...], "std": [...]}, ...}``.

    Args:
        content: The decoded JSON.
        name: What messages call it.
        planes: The planes that it must have.
        features: Number of hit features.

    Raises:
        FormatError: Planes or numbers are missing, or a standard deviation is not positive.
    """
    if not isinstance(content, Mapping) or set(content) != set(planes):
        raise FormatError(f"{name} must have exactly the planes {list(planes)}")
    found = {}
    for plane in planes:
        read = _Fields(content[plane], f"{name}.{plane}.")
        mean, std = read.numbers("mean"), read.numbers("std")
        read.done()
        if len(mean) != features or len(std) != features:
            raise FormatError(f"{name}.{plane} needs {features} means and standard deviations")
        if min(std) <= 0:
            raise FormatError(f"{name}.{plane}.std is {list(std)}: it must be positive")
        found[plane] = PlaneNormalisation(mean, std)
    return found


def _embedding(read: _Fields) -> Embedding:
    found = Embedding(read.size("width"), read.size("hidden"), read.size("layers", least=2))
    read.done()
    if found.layers > 3:
        raise FormatError(f"network.embedding.layers is {found.layers}: expected 2 or 3")
    return found


def _head(read: _Fields) -> Head:
    classes = read.value("classes")
    head = Head(
        name=read.name("name"),
        output=read.name("output"),
        node=read.choice("node", NODES),
        width=read.size("width"),
        activation=read.choice("activation", ACTIVATIONS),
        classes=None if classes is None else read.names_in(classes, "classes", any_text=True),
    )
    read.done()
    if head.classes is not None and len(head.classes) != head.width:
        raise FormatError(
            f"head {head.name} has width {head.width} but names {len(head.classes)} classes"
        )
    return head


def _clustering(read: _Fields) -> Clustering:
    found = Clustering(
        output=read.name("output"),
        embedding=read.name("embedding"),
        eps=read.number("eps"),
        min_samples=read.size("min_samples"),
        signal=read.optional_name("signal"),
        semantic=read.optional_name("semantic"),
        background=read.size("background", least=0),
    )
    read.done()
    return found


def _check_consistency(card: ModelCard) -> None:
    spec = card.network
    if not card.planes or not card.hit_features:
        raise FormatError("planes and hit_features must not be empty")
    if (spec.event_width > 0) != (spec.kind == "nugraph3"):
        raise FormatError("network.event_width is required for nugraph3, and for no other")
    if spec.kind == "nugraph3" and spec.classes != 1:
        raise FormatError("network.classes must be 1 for nugraph3")
    if spec.kind == "nugraph2" and (spec.nexus, spec.nexus_start) != ("concat", "zeros"):
        raise FormatError("nugraph2 needs network.nexus concat and nexus_start zeros")
    if card.spacepoint_positions and spec.nexus_start != "position":
        raise FormatError("spacepoint_positions need network.nexus_start position")
    if (embedding := spec.embedding) is not None:
        widths = tuple(h.width for n in EMBEDDED_HEADS for h in card.heads if h.name == n)
        if spec.kind != "nugraph3" or widths != (1, embedding.width):
            raise FormatError(
                "network.embedding needs nugraph3 and its heads instance_beta and instance"
            )
        for head in card.heads:
            if head.name in EMBEDDED_HEADS and head.node != "hit":
                raise FormatError(f"head {head.name} needs node hit: network.embedding is of hits")
    if not card.heads:
        raise FormatError("heads is empty: the network would have no outputs")
    if spec.kind == "nugraph2" and any(head.node == "event" for head in card.heads):
        raise FormatError("nugraph2 has no event node for a head")
    names = [tensor.name for tensor in card.outputs]
    if len(set(names)) < len(names) or len({head.name for head in card.heads}) < len(card.heads):
        raise FormatError("names and outputs of the heads must be unique")
    if (cluster := card.clustering) is not None:
        scalar = {head.output: head.is_scalar for head in card.heads if head.node == "hit"}
        wanted = {cluster.embedding: False, cluster.signal: True, cluster.semantic: False}
        for output, is_scalar in wanted.items():
            if output is not None and scalar.get(output) is not is_scalar:
                raise FormatError(f"clustering needs a head with output {output}")
    if Path(card.weights.file).name != card.weights.file:
        raise FormatError(f"weights.file is {card.weights.file!r}: expected a plain file name")


def _is_text(value: Any) -> bool:
    """Return whether this is a text that can be written as UTF-8; JSON may have half letters."""
    return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)


class _Fields:
    """The fields of a JSON object, each read exactly once."""

    def __init__(self, content: Any, where: str) -> None:
        if not isinstance(content, Mapping):
            raise FormatError(f"{where.rstrip('.') or 'the card'} must be an object")
        self._left = dict(content)
        self._where = where

    def value(self, name: str) -> Any:
        if name not in self._left:
            raise FormatError(f"{self._where}{name} is missing")
        return self._left.pop(name)

    def has(self, name: str) -> bool:
        return name in self._left

    def done(self) -> None:
        if self._left:
            raise FormatError(f"{self._where}{sorted(self._left)[0]} is not a known field")

    def object(self, name: str) -> _Fields:
        return _Fields(self.value(name), f"{self._where}{name}.")

    def optional(self, name: str) -> _Fields | None:
        value = self.value(name)
        return None if value is None else _Fields(value, f"{self._where}{name}.")

    def objects(self, name: str) -> list[_Fields]:
        value = self.value(name)
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list of objects")
        return [_Fields(each, f"{self._where}{name}[{i}].") for i, each in enumerate(value)]

    def text(self, name: str) -> str:
        value = self.value(name)
        if not _is_text(value):
            raise self._wrong(name, value, "a string")
        return str(value)

    def pair(self, first: str, second: str) -> tuple[str, str]:
        found = self.text(first), self.text(second)
        self.done()
        return found

    def name(self, name: str) -> str:
        value = self.text(name)
        if _NAME.fullmatch(value) is None:
            raise self._wrong(name, value, "letters, digits and underscores")
        return value

    def optional_name(self, name: str) -> str | None:
        if self._left.get(name, "") is None:
            del self._left[name]
            return None
        return self.name(name)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        value = self.text(name)
        if value not in choices:
            raise self._wrong(name, value, " or ".join(choices))
        return value

    def names(self, name: str) -> tuple[str, ...]:
        return self.names_in(self.value(name), name)

    def names_in(self, value: Any, name: str, *, any_text: bool = False) -> tuple[str, ...]:
        fits = isinstance(value, list) and all(
            _is_text(each) and (any_text or _NAME.fullmatch(each)) for each in value
        )
        if not fits or len(set(value)) < len(value) or not value:
            raise self._wrong(name, value, "a list of distinct names")
        return tuple(value)

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def size(self, name: str, least: int = 1, most: int = 2**31 - 1) -> int:
        value = self.value(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(name, value, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str) -> float:
        return self.numbers_in([self.value(name)], name)[0]

    def numbers(self, name: str) -> tuple[float, ...]:
        return self.numbers_in(self.value(name), name)

    def numbers_in(self, value: Any, name: str) -> tuple[float, ...]:
        fits = isinstance(value, list) and all(
            isinstance(each, int | float) and not isinstance(each, bool) and abs(each) <= _MOST
            for each in value
        )
        if not fits:
            raise self._wrong(name, value, "finite numbers")
        return tuple(float(each) for each in value)

    def _wrong(self, name: str, value: Any, wanted: str) -> FormatError:
        return FormatError(f"{self._where}{name} is {value!r}: expected {wanted}")
