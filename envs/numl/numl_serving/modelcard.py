"""The model card: all that a server must know of a model besides its weights (``model.json``).

Tensors of requests and answers, the graph, the network and its heads follow from the card alone.
Weights have the names that `weight_shapes` gives, whatever generation of nugraph they come from.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numl_serving.errors import ModelFilesError
from numl_serving.event import Schema, Tensor

FORMAT = 2
CARD_FILE = "model.json"
WEIGHTS_FILE = "weights.safetensors"
GOLDEN_FILE = "golden.npz"

KINDS = ("nugraph3", "nugraph2")
NEXUS_RULES = ("sum", "concat", "joint")
NEXUS_STARTS = ("zeros", "position")
ACTIVATIONS = ("none", "softmax", "sigmoid")
NODES = ("hit", "event")

POSITION_FEATURES = ("wire_position", "time_position")
"""The hit features that are a column times a factor of the position scale."""

_COLUMN_OF = {"wire_position": "local_wire", "time_position": "local_time"}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class PlaneNormalisation(NamedTuple):
    """Normalisation of a plane's hit features, ``(x - mean) / std``, in the card's order."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """The network's message passing.

    Attributes:
        kind: nugraph3 or nugraph2.
        generation: Where the weights come from, for people: 24.7.1, per-plane or 25.4.
        iterations: Number of message-passing iterations.
        hit_width: Features of a hit (nugraph2: for each class).
        nexus_width: Features of a spacepoint (nugraph2: for each class). With the rule concat a
            nugraph3's spacepoint receives this many features from each plane.
        event_width: Features of the event; 0 for nugraph2.
        classes: Feature sets of a node: nugraph2's semantic classes; 1 for nugraph3.
        nexus_start: A spacepoint's features before the first iteration: zeros, or ``position``, a
            linear layer on its position (cm; zeros where a request carries none).
        nexus: What a spacepoint makes of its hits. ``sum``: each plane's hits are aggregated and
            updated apart, and added; ``concat``: the same, side by side; ``joint``: the hits of
            all planes are aggregated together. nugraph2 is ``concat``.
    """

    kind: str
    generation: str
    iterations: int
    hit_width: int
    nexus_width: int
    event_width: int
    classes: int
    nexus_start: str
    nexus: str


@dataclass(frozen=True, slots=True)
class Head:
    """A linear layer on the features of hits or of the event, and what becomes of its numbers.

    Attributes:
        name: Names its weights, ``heads.NAME.weight``.
        output: First part of its tensors' names, to which ``_`` and the plane, or ``_evt``, are
            added.
        node: hit or event.
        width: Numbers for each node.
        activation: none, softmax (over the numbers of a node) or sigmoid.
        classes: A name for each number of a classification, else None. Without classes, a width
            of 1 gives tensors without a second dimension.
    """

    name: str
    output: str
    node: str
    width: int
    activation: str = "none"
    classes: tuple[str, ...] | None = None

    @property
    def is_scalar(self) -> bool:
        """Whether its tensors have one number for each node and no second dimension."""
        return self.width == 1 and self.classes is None


@dataclass(frozen=True, slots=True)
class Clustering:
    """How hits become instances: DBSCAN on an embedding, as nugraph's instance decoder runs it.

    Attributes:
        output: First part of the tensors' names: int32, the cluster of each hit, -1 for none.
        embedding: Output of the head whose numbers are the coordinates.
        eps: Largest distance between neighbours.
        min_samples: Neighbours that make a hit a core of a cluster, the hit itself included.
        signal: Output of the head above 0.5 of which a hit has to be; None: no condition.
        semantic: Output of the head whose largest number must not be `background`; None: no
            condition.
        background: Index of that class.
    """

    output: str
    embedding: str
    eps: float
    min_samples: int
    signal: str | None
    semantic: str | None
    background: int


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
        network: The message passing.
        planes: Names of the wire planes; a hit's ``local_plane`` is an index into them.
        hit_features: What the network is given of a hit, in its order: `POSITION_FEATURES`, or
            names of columns of the hit table.
        position_scale: Factors for wire and time, of the graph's positions.
        spacepoint_positions: Whether requests may carry spacepoint positions.
        normalisation: By plane; None: the features go in as they are.
        heads: What the network answers.
        clustering: How hits become instances, or None.
        weights: The weights file.
        source: The checkpoint that was imported.
        demo: True for weights that were trained on simulated events for demonstration only.
        description: One line for people.
        accuracy: What was measured on events not used in training, or None.
    """

    network: NetworkSpec
    planes: tuple[str, ...]
    hit_features: tuple[str, ...]
    position_scale: tuple[float, float]
    spacepoint_positions: bool
    normalisation: Mapping[str, PlaneNormalisation] | None
    heads: tuple[Head, ...]
    clustering: Clustering | None
    weights: WeightsFile
    source: Source
    demo: bool = False
    description: str = ""
    accuracy: Mapping[str, Any] | None = None

    @property
    def schema(self) -> Schema:
        """The columns of a request."""
        columns = [_COLUMN_OF.get(feature, feature) for feature in self.hit_features]
        return Schema.of(self.planes, columns, positions=self.spacepoint_positions)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors of an answer. Classes of an event are declared as existing clients know it.

        The event head answers ``[1, classes]`` and declares ``[classes]``.
        """
        found: list[Tensor] = []
        for head in self.heads:
            if head.node == "event":
                dims = (head.width,) if head.classes is not None else (1, head.width)
                found.append(Tensor(f"{head.output}_evt", np.dtype(np.float32), dims))
            else:
                dims = (-1,) if head.is_scalar else (-1, head.width)
                found += [
                    Tensor(f"{head.output}_{plane}", np.dtype(np.float32), dims)
                    for plane in self.planes
                ]
        if self.clustering is not None:
            found += [
                Tensor(f"{self.clustering.output}_{plane}", np.dtype(np.int32), (-1,))
                for plane in self.planes
            ]
        return tuple(found)


def weight_shapes(card: ModelCard) -> dict[str, tuple[int, ...]]:
    """Return name and shape of a card's weights; see `shapes_of`."""
    return shapes_of(card.network, len(card.planes), len(card.hit_features), card.heads)


def shapes_of(
    spec: NetworkSpec, planes: int, features: int, heads: Sequence[Head]
) -> dict[str, tuple[int, ...]]:
    """Return name and shape of the weights, all float32; a first dimension of -1 is P.

    P is 1 where the planes share the weights, else their number; it may differ from layer to
    layer. With F hit features, C classes, widths H (hit), N (nexus) and E (event), and M = N, or N
    for each plane with the rule ``concat``, the layers ``[..., outputs, inputs]`` are:

    - nugraph3: ``encoder`` [P, H, F]; ``nexus_encoder`` [N, 3] if spacepoints start from their
      position; the blocks ``planar`` (hit to hit), ``up`` (hit to spacepoint), ``to_event``,
      ``from_event`` and ``down`` (spacepoint to hit). For T features of the node that receives,
      S of the one that sends and O that come out, a block has ``gate`` [P, T + S] (the receiving
      node's features first), ``hidden`` [P, O, S + T] (what is received first) and ``output``
      [P, O, O]; ``to_event`` and ``from_event`` lack the P.
    - nugraph2: ``encoder`` [P, C, H, F]; ``planar.gate`` [P, C, 2 (H + F)], ``planar.hidden``
      [P, C, H, 2 (H + F)], ``planar.output`` [P, C, H, H]; ``nexus.hidden`` [C, N, planes H],
      ``nexus.output`` [C, N, N]; ``down.gate`` [P, C, H + N], ``down.hidden`` [P, C, H, H + N],
      ``down.output`` [P, C, H, H]. The receiving node's features come first everywhere.
    - ``heads.NAME`` [P, width, C H] (class by class), or [width, E] for a head on the event.

    Each is ``NAME.weight``; ``NAME.bias`` has its shape without the inputs.
    """
    shapes: dict[str, tuple[int, ...]] = {}

    def layer(name: str, *shape: int) -> None:
        shapes[f"{name}.weight"] = shape
        shapes[f"{name}.bias"] = shape[:-1]

    h, n, e, c = spec.hit_width, spec.nexus_width, spec.event_width, spec.classes
    if spec.kind == "nugraph3":
        merged = planes * n if spec.nexus == "concat" else n
        layer("encoder", -1, h, features)
        if spec.nexus_start == "position":
            layer("nexus_encoder", n, 3)
        blocks = {
            "planar": ((-1,), h, h, h),
            "up": ((-1,), n, h, n),
            "to_event": ((), e, merged, e),
            "from_event": ((), merged, e, n),
            "down": ((-1,), h, n, h),
        }
        for name, (lead, target, source, out) in blocks.items():
            layer(f"{name}.gate", *lead, target + source)
            layer(f"{name}.hidden", *lead, out, source + target)
            layer(f"{name}.output", *lead, out, out)
    else:
        joined = 2 * (h + features)
        layer("encoder", -1, c, h, features)
        layer("planar.gate", -1, c, joined)
        layer("planar.hidden", -1, c, h, joined)
        layer("planar.output", -1, c, h, h)
        layer("nexus.hidden", c, n, planes * h)
        layer("nexus.output", c, n, n)
        layer("down.gate", -1, c, h + n)
        layer("down.hidden", -1, c, h, h + n)
        layer("down.output", -1, c, h, h)
    for head in heads:
        if head.node == "event":
            layer(f"heads.{head.name}", head.width, e)
        else:
            layer(f"heads.{head.name}", -1, head.width, c * h)
    return shapes


def check_weights(card: ModelCard, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that weights are those that a card describes.

    Raises:
        ModelFilesError: Names the first that is missing, unexpected or of another shape.
    """
    expected = weight_shapes(card)
    for name in sorted(expected.keys() | shapes.keys()):
        wanted, found = expected.get(name), shapes.get(name)
        if wanted is None:
            raise ModelFilesError(f"weight {name} is not one of the network in {CARD_FILE}")
        if found is None:
            raise ModelFilesError(f"weight {name} is missing")
        leads = (1, len(card.planes)) if wanted[:1] == (-1,) else wanted[:1]
        if card.network.nexus == "joint" and name.startswith("up."):
            leads = (1,)  # the hits of all planes are aggregated together
        if (
            len(found) != len(wanted)
            or found[1:] != wanted[1:]
            or (found[:1] and found[0] not in leads)
        ):
            raise ModelFilesError(
                f"weight {name} has shape {list(found)}, {CARD_FILE} describes {list(wanted)}"
            )


def dump_card(card: ModelCard) -> str:
    """Return the text of ``model.json``, with the tensors that follow from the card."""
    content = {"format": FORMAT} | asdict(card)
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
    if content.get("format") != FORMAT:
        raise ModelFilesError(
            f"format is {content.get('format')!r}, this program reads {FORMAT}: "
            "import the checkpoint again"
        )
    given = {name: value for name, value in content.items() if name != "format"}
    inputs, outputs = given.pop("inputs", None), given.pop("outputs", None)
    read = _Fields(given, "")
    normalisation = read.value("normalisation")
    clustering = read.optional("clustering")
    network = read.object("network")
    scale = read.numbers("position_scale")
    if len(scale) != 2:
        raise ModelFilesError("position_scale needs two factors (wire, time)")
    card = ModelCard(
        network=NetworkSpec(
            kind=network.choice("kind", KINDS),
            generation=network.text("generation"),
            iterations=network.size("iterations"),
            hit_width=network.size("hit_width"),
            nexus_width=network.size("nexus_width"),
            event_width=network.size("event_width", least=0),
            classes=network.size("classes"),
            nexus_start=network.choice("nexus_start", NEXUS_STARTS),
            nexus=network.choice("nexus", NEXUS_RULES),
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
            raise ModelFilesError(f"{name} do not follow from the rest of the card")
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
        ModelFilesError: Planes or numbers are missing, or a standard deviation is not positive.
    """
    if not isinstance(content, Mapping) or set(content) != set(planes):
        raise ModelFilesError(f"{name} needs exactly the planes {list(planes)}")
    found = {}
    for plane in planes:
        read = _Fields(content[plane], f"{name}.{plane}.")
        mean, std = read.numbers("mean"), read.numbers("std")
        read.done()
        if len(mean) != features or len(std) != features:
            raise ModelFilesError(f"{name}.{plane} needs {features} means and standard deviations")
        if min(std) <= 0:
            raise ModelFilesError(f"{name}.{plane}.std is {list(std)}: it must be positive")
        found[plane] = PlaneNormalisation(mean, std)
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
        raise ModelFilesError(
            f"head {head.name} has width {head.width} but {len(head.classes)} classes"
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
        raise ModelFilesError("planes and hit_features must not be empty")
    if (spec.event_width > 0) != (spec.kind == "nugraph3"):
        raise ModelFilesError("network.event_width is for nugraph3, and only for it")
    if spec.kind == "nugraph3" and spec.classes != 1:
        raise ModelFilesError("network.classes of a nugraph3 is 1")
    if spec.kind == "nugraph2" and (spec.nexus, spec.nexus_start) != ("concat", "zeros"):
        raise ModelFilesError("network.nexus of a nugraph2 is concat, its nexus_start zeros")
    if card.spacepoint_positions and spec.nexus_start != "position":
        raise ModelFilesError("spacepoint_positions need network.nexus_start position")
    if not card.heads:
        raise ModelFilesError("heads are needed: a network without them answers nothing")
    if spec.kind == "nugraph2" and any(head.node == "event" for head in card.heads):
        raise ModelFilesError("a nugraph2 has no event node for a head")
    names = [tensor.name for tensor in card.outputs]
    if len(set(names)) < len(names) or len({head.name for head in card.heads}) < len(card.heads):
        raise ModelFilesError("names and outputs of the heads must differ from each other")
    if (cluster := card.clustering) is not None:
        scalar = {head.output: head.is_scalar for head in card.heads if head.node == "hit"}
        wanted = {cluster.embedding: False, cluster.signal: True, cluster.semantic: False}
        for output, is_scalar in wanted.items():
            if output is not None and scalar.get(output) is not is_scalar:
                raise ModelFilesError(f"clustering needs a head with output {output}")
    if Path(card.weights.file).name != card.weights.file:
        raise ModelFilesError(f"weights.file is {card.weights.file!r}: a plain file name is needed")


class _Fields:
    """The fields of a JSON object, each to be read once."""

    def __init__(self, content: Any, where: str) -> None:
        if not isinstance(content, Mapping):
            raise ModelFilesError(f"{where.rstrip('.') or 'the card'} must be an object")
        self._left = dict(content)
        self._where = where

    def value(self, name: str) -> Any:
        if name not in self._left:
            raise ModelFilesError(f"{self._where}{name} is missing")
        return self._left.pop(name)

    def done(self) -> None:
        if self._left:
            raise ModelFilesError(f"{self._where}{sorted(self._left)[0]} is not a known field")

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
        if not isinstance(value, str):
            raise self._wrong(name, value, "a text")
        return value

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
            isinstance(each, str) and (any_text or _NAME.fullmatch(each)) for each in value
        )
        if not fits or len(set(value)) < len(value) or not value:
            raise self._wrong(name, value, "a list of different names")
        return tuple(value)

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def size(self, name: str, least: int = 1) -> int:
        value = self.value(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong(name, value, f"a whole number of at least {least}")
        return value

    def number(self, name: str) -> float:
        return self.numbers_in([self.value(name)], name)[0]

    def numbers(self, name: str) -> tuple[float, ...]:
        return self.numbers_in(self.value(name), name)

    def numbers_in(self, value: Any, name: str) -> tuple[float, ...]:
        fits = isinstance(value, list) and all(
            isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each)
            for each in value
        )
        if not fits:
            raise self._wrong(name, value, "finite numbers")
        return tuple(float(each) for each in value)

    def _wrong(self, name: str, value: Any, wanted: str) -> ModelFilesError:
        return ModelFilesError(f"{self._where}{name} is {value!r}: {wanted} is needed")
