"""What nugraph calls the layers of its networks: all that the importer knows of its generations.

A row of `HEADS` for each head, a `Generation` for each message passing. From them follow the names
and shapes that a checkpoint must have, the network and the heads of the model card, and the weights
as `weight_shapes` wants them. Names are patterns: ``{plane}`` stands for the name of a plane,
``{index}`` for its number, and ``{set}`` for that of a feature set (NuGraph2 has one for each
semantic class).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from numl_formats.card import EXTENSION_FEATURES


class HeadRow(NamedTuple):
    """A head that nugraph has: what the card says of it, and where its weights are.

    Attributes:
        name: Name in the card; with `named_classes` also of the option and the hyper-parameter
            that name its classes (``semantic_classes``).
        output: First part of its tensors' names.
        node: hit or event.
        activation: none, sigmoid, or softmax, which only some generations apply.
        layers: Patterns for its linear layer; the first that a checkpoint has is taken.
        named_classes: Whether its numbers are classes.
    """

    name: str
    output: str
    node: str
    activation: str
    layers: tuple[str, ...]
    named_classes: bool = False


HEADS: tuple[HeadRow, ...] = (
    HeadRow(
        "semantic",
        "x_semantic",
        "hit",
        "softmax",
        (
            "semantic_decoder.net.{plane}.net.{set}",
            "semantic_decoder.net.{plane}",
            "semantic_decoder.net",
        ),
        named_classes=True,
    ),
    HeadRow(
        "filter",
        "x_filter",
        "hit",
        "sigmoid",
        ("filter_decoder.net.{plane}.0", "filter_decoder.net"),
    ),
    HeadRow("event", "e", "event", "softmax", ("event_decoder.net",), named_classes=True),
    HeadRow("vertex", "v", "event", "none", ("vertex_decoder.net",)),
    HeadRow("spacepoint", "x_position", "hit", "none", ("spacepoint_decoder.net.{index}",)),
    HeadRow(
        "instance_beta",
        "of",
        "hit",
        "sigmoid",
        ("instance_decoder.beta_net", "instance_decoder.beta_net.2"),
    ),
    HeadRow(
        "instance",
        "ox",
        "hit",
        "none",
        ("instance_decoder.coord_net", "instance_decoder.coord_net.2"),
    ),
)
"""Every head that can be served, in the order of the answer. A new one needs a row here."""


class Graphs(NamedTuple):
    """Graphs of pynuml that networks are trained on.

    Attributes:
        generation: First, or second (since pynuml 25.4).
        features: The hit features that a network gets of them by default, in their order.
        position_scale: Factors for wire and time.
    """

    generation: int
    features: tuple[str, ...]
    position_scale: tuple[float, float]


_PLANE_WIRE_TIME = ("local_plane", "local_wire", "local_time")
_POSITION = ("wire_position", "time_position")

_FIRST = Graphs(1, (*_POSITION, "integral", "rms"), (0.3, 0.055))
# NuGraph3's Transform adds the plane to first-generation graphs.
_FIRST_WITH_PLANE = _FIRST._replace(features=(*_FIRST.features, "local_plane"))
_SECOND = Graphs(2, (*_POSITION, "integral", "rms", *_PLANE_WIRE_TIME), (1.0, 1.0))
_SECOND_WITH_TPC = _SECOND._replace(
    features=(*_POSITION, "integral", "rms", "tpc", *_PLANE_WIRE_TIME)
)


def _extended(graphs: tuple[Graphs, ...]) -> tuple[Graphs, ...]:
    """Return the graphs, then the same with nugraph's feature extension."""
    more = (each._replace(features=(*each.features, *EXTENSION_FEATURES)) for each in graphs)
    return (*graphs, *more)


class Dbscan(NamedTuple):
    """The parameters of an inference's DBSCAN."""

    eps: float
    min_samples: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A message passing that nugraph has, and where its weights are.

    Attributes:
        kind: nugraph3 or nugraph2.
        name: Name in the card.
        origin: What people call it.
        layers: Pattern of nugraph's name for each layer of `weight_shapes` but the heads.
        graphs: The graphs it may have been trained on, told apart by the number of features.
        nexus: Rule of the card.
        nexus_start: The same.
        softmax: Whether the heads of classes end in a softmax.
        input_norm: Pattern of the module that normalises the hit features, or None.
        dbscan: How its inference makes instances of the embedding; None: it does not.
        embedding: Pattern of nugraph's name for each layer of the card's `Embedding`. They are in
            each checkpoint but, without the instance decoder's, of no use.
    """

    kind: str
    name: str
    origin: str
    layers: Mapping[str, str]
    graphs: tuple[Graphs, ...]
    nexus: str = "concat"
    nexus_start: str = "zeros"
    softmax: bool = False
    input_norm: str | None = None
    dbscan: Dbscan | None = None
    embedding: Mapping[str, str] = field(default_factory=dict)


def _blocks(modules: Mapping[str, str], net: str = "net", each: str = "") -> dict[str, str]:
    """Return the three layers of nugraph's blocks, by the name of the block."""
    places = {"gate": "edge_net.0", "hidden": f"{net}.0", "output": f"{net}.2"}
    return {
        f"{block}.{layer}": f"{module}.{place}{each}"
        for block, module in modules.items()
        for layer, place in places.items()
    }


_HETERO_BLOCKS = _blocks(
    {
        "planar": "core_net.plane_net.convs.<{plane}___plane___{plane}>",
        "up": "core_net.plane_to_nexus.convs.<{plane}___nexus___sp>",
        "to_event": "core_net.nexus_to_interaction.convs.<sp___in___evt>",
        "from_event": "core_net.interaction_to_nexus.convs.<evt___owns___sp>",
        "down": "core_net.nexus_to_plane.convs.<sp___nexus___{plane}>",
    }
)
_JOINT_BLOCKS = _blocks(
    {
        "planar": "core_net.plane_net",
        "up": "core_net.plane_to_nexus",
        "to_event": "core_net.nexus_to_interaction",
        "from_event": "core_net.interaction_to_nexus",
        "down": "core_net.nexus_to_plane",
    }
)


def _embedding(*updates: str) -> dict[str, str]:
    """Return the layers of the instance embedding; those named are of an update."""
    layers: dict[str, str] = {}
    for name, module in (("beta", "beta_net"), ("coordinates", "coord_net")):
        layers[f"{name}.start"] = f"encoder.{module}.0"
        for index, layer in enumerate(updates):
            layers[f"{name}.{layer}"] = f"core_net.{module}.{2 * index}"
        layers[f"{name}.decoder"] = f"instance_decoder.{module}.0"
    return layers


_CLASS_BLOCKS = _blocks(
    {"planar": "plane_net.net.{plane}", "down": "nexus_net.nexus_down.{plane}"},
    net="node_net",
    each=".net.{set}",
) | {
    "nexus.hidden": "nexus_net.nexus_net.0.net.{set}",
    "nexus.output": "nexus_net.nexus_net.2.net.{set}",
}

_OF_25_4 = Generation(
    "nugraph3",
    "25.4",
    "nugraph 25.4",
    {"encoder": "encoder.planar_net"} | _JOINT_BLOCKS,
    (_FIRST_WITH_PLANE, _SECOND, _SECOND_WITH_TPC),
    nexus="joint",
    softmax=True,
    input_norm="encoder.input_norm.norm",
    dbscan=Dbscan(0.5, 5),  # cuml's defaults
)


def _of_main(name: str, months: str, *updates: str) -> Generation:
    """Return a generation of nugraph's main branch; the layers named are of an embedding's update.

    The rest is as in nugraph 25.4.
    """
    return replace(
        _OF_25_4,
        name=name,
        origin=f"nugraph's main branch {months} 2026",
        graphs=_extended(_OF_25_4.graphs),
        dbscan=Dbscan(0.3, 15),
        embedding=_embedding(*updates),
    )


GENERATIONS = (
    Generation(
        "nugraph3",
        "24.7.1",
        "nugraph 24.7.1",
        {"encoder": "encoder.planar_net", "nexus_encoder": "encoder.nexus_net"} | _HETERO_BLOCKS,
        (_FIRST,),
        nexus="sum",
        nexus_start="position",
        softmax=True,
    ),
    Generation(
        "nugraph3",
        "per-plane",
        "nugraph between 24.4 and 24.7 (weights per plane)",
        {"encoder": "encoder.lins.{plane}"} | _HETERO_BLOCKS,
        (_FIRST,),
    ),
    _OF_25_4,
    _of_main("2026-01", "between January and May", "hidden", "output"),
    _of_main("2026-05", "since May", "hidden", "middle", "output"),
    Generation(
        "nugraph2",
        "24.7.1",
        "nugraph 24.7.1",
        {"encoder": "encoder.net.{plane}.0.net.{set}"} | _CLASS_BLOCKS,
        _extended((_FIRST,)),
    ),
    Generation(
        "nugraph2",
        "25.4",
        "nugraph 25.4",
        {"encoder": "encoder.net.{plane}.1.net.{set}"} | _CLASS_BLOCKS,
        _extended((_FIRST, _SECOND, _SECOND_WITH_TPC)),
        input_norm="encoder.net.{plane}.0.norm",
    ),
)
