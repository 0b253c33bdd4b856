"""The model card: all that a server must know of a model besides its weights (``model.json``).

Tensors of requests and answers, the graph, the network and its heads follow from the card alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from numl_formats.contract import OF_THE_EVENT, Schema, Signature, Tensor

MAX_ITERATIONS = 1000
"""Far more than any network has; a larger number means damage, and would loop forever."""

KINDS = ("nugraph3", "nugraph2")
NEXUS_RULES = ("sum", "concat", "joint")
NEXUS_STARTS = ("zeros", "position")
ACTIVATIONS = ("none", "softmax", "sigmoid")
NODES = ("hit", "event")

POSITION_FEATURES = ("wire_position", "time_position")
"""Hit features computed as a column times its position scale factor."""
EXTENSION_FEATURES = ("wire_difference", "time_difference", "log_degree", "nearest_distance")
"""Hit features made from the graph of a plane, by nugraph's ``FeatureExtension``.

Twice the hit's own wire (time) position less those of the two nearest hits, the logarithm of its
number of neighbours (at least 1), and the distance to the nearest hit. Where there are fewer than
two other hits, the hit itself stands for those that are missing, and the distance may be 0.
"""
EMBEDDED_HEADS = ("instance_beta", "instance")
"""With an `Embedding`, these heads are applied to its ``decoder`` layers, not to the hits."""

_COLUMN_OF = {"wire_position": "local_wire", "time_position": "local_time"}


class PlaneNormalisation(NamedTuple):
    """Normalisation of a plane's hit features, ``(x - mean) / std``, in the card's order."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Embedding:
    """nugraph3's instance embedding, which is updated in every iteration (nugraph since 2026).

    It is two vectors of each hit: ``beta``, one number, and ``coordinates``. Both start from the
    hit's input features and are then updated from themselves and the hit's features. They never
    feed back into the features.

    Attributes:
        width: Numbers of the coordinates.
        hidden: Width of the hidden layers of an update.
        layers: Linear layers of an update: 3, or 2 with a Mish behind the new coordinates
            (January to May 2026).
    """

    width: int
    hidden: int
    layers: int


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """The network's message passing.

    Attributes:
        kind: nugraph3 or nugraph2.
        generation: Where the weights come from, for people: 24.7.1, per-plane, 25.4, 2026-01 or
            2026-05.
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
        embedding: Of the instances, or None.
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
    embedding: Embedding | None = None


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
    """The weights file, in the card's folder, and its sha256."""

    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Source:
    """The checkpoint the weights came from: file name and sha256."""

    checkpoint: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The content of ``model.json``.

    Attributes:
        network: The message passing.
        planes: Names of the wire planes; a hit's ``local_plane`` is an index into them.
        hit_features: What the network is given of a hit, in its order: `POSITION_FEATURES`,
            `EXTENSION_FEATURES`, or names of columns of the hit table.
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
        columns = [
            _COLUMN_OF.get(feature, feature)
            for feature in self.hit_features
            if feature not in EXTENSION_FEATURES
        ]
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
                found.append(Tensor(f"{head.output}{OF_THE_EVENT}", "FP32", dims))
            else:
                dims = (-1,) if head.is_scalar else (-1, head.width)
                found += [Tensor(f"{head.output}_{plane}", "FP32", dims) for plane in self.planes]
        return *found, *(Tensor(name, "INT32", (-1,)) for name in self.clusters)

    @property
    def clusters(self) -> tuple[str, ...]:
        """The outputs that number each hit's cluster, over all planes."""
        if self.clustering is None:
            return ()
        return tuple(f"{self.clustering.output}_{plane}" for plane in self.planes)

    @property
    def signature(self) -> Signature:
        """The tensors of requests and answers, by name."""
        return Signature(
            {tensor.name: tensor for tensor in self.schema.tensors},
            {tensor.name: tensor for tensor in self.outputs},
        )
