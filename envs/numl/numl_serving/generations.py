"""Recognise a network from the names and shapes of its weights.

Three state dicts are known: NuGraph2 and NuGraph3 of nugraph 24.7.1, and the *per-plane* NuGraph3
of the development versions between 24.4 and 24.7. For a candidate the whole table of expected
names and shapes is written down, and compared with what is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from numl_serving.errors import ModelFilesError
from numl_serving.event import PLANES

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

IN_FEATURES = 4
POSITION_FEATURES = 3

SUPPORTED = (
    "nugraph3 of nugraph 24.7.1, nugraph3 with weights per plane (between 24.4 and 24.7), "
    "nugraph2 of nugraph 24.7.1"
)

# Weights that only training uses, and the object condensation head, which has no output on the
# wire.
_NOT_SERVED = re.compile(
    r"(^|\.)(temp|loss\..*|recall\..*|precision\..*|cm_recall\..*|cm_precision\..*|confusion\..*)$"
    r"|^instance_decoder\."
)
# PyTorch Geometric wrote the edge types of a HeteroConv as u__plane__u before it wrote
# <u___plane___u>.
_OLD_EDGE_TYPE = re.compile(r"\.convs\.([a-z]+)__([a-z]+)__([a-z]+)\.")


@dataclass(frozen=True, slots=True)
class Spec:
    """What the state dict alone tells of a network.

    Attributes:
        architecture: nugraph3 or nugraph2.
        variant: 24.7.1 or per-plane.
        planar_features: Width of a hit's features.
        nexus_features: Width of a spacepoint's features.
        interaction_features: Width of the event's features; 0 for nugraph2.
        semantic_classes: Number of semantic classes; 0 without a semantic head.
        event_classes: Number of event classes; 0 without an event head.
        heads: The decoders that are there.
    """

    architecture: str
    variant: str
    planar_features: int
    nexus_features: int
    interaction_features: int
    semantic_classes: int
    event_classes: int
    heads: tuple[str, ...]

    def expected(self) -> dict[str, Shape]:
        """Return name and shape of all weights that the network uses."""
        layers = _nugraph2_layers if self.architecture == "nugraph2" else _nugraph3_layers
        shapes: dict[str, Shape] = {}
        for name, inputs, outputs in layers(self):
            shapes[f"{name}.weight"] = (outputs, inputs)
            shapes[f"{name}.bias"] = (outputs,)
        return shapes


def canonical_name(name: str) -> str:
    """Return a weight's name as the current PyTorch Geometric writes it."""
    return _OLD_EDGE_TYPE.sub(r".convs.<\1___\2___\3>.", name)


def recognise(shapes: Shapes, architecture: str) -> Spec:
    """Find the variant of an architecture that a state dict belongs to.

    Args:
        shapes: Shape of every weight by its canonical name.
        architecture: nugraph3 or nugraph2, as the user says.

    Raises:
        ModelFilesError: No known variant fits; names what is missing, unexpected and supported.
    """
    candidates = list(_candidates(shapes))
    for spec in candidates:
        if spec.architecture == architecture and _fits(shapes, spec):
            return spec
    for spec in candidates:
        if _fits(shapes, spec):
            raise ModelFilesError(
                f"the weights are those of {spec.architecture}, not of {architecture}: "
                f"import them with --model {spec.architecture}"
            )
    same = [spec for spec in candidates if spec.architecture == architecture]
    closest = min(same, key=lambda spec: sum(map(len, _difference(shapes, spec))))
    missing, unexpected, misshapen = _difference(shapes, closest)
    raise ModelFilesError(
        f"the weights are of no known {architecture}; closest is variant {closest.variant}: "
        f"missing {_some(missing)}, unexpected {_some(unexpected)}, "
        f"of another shape {_some(misshapen)}, heads {_some(list(closest.heads))}; "
        f"supported are {SUPPORTED}"
    )


def is_served(name: str) -> bool:
    """Tell whether inference uses a weight of this name."""
    return _NOT_SERVED.search(name) is None


def _candidates(shapes: Shapes) -> Iterator[Spec]:
    heads = tuple(
        head
        for head in ("semantic", "filter", "event", "vertex")
        if any(name.startswith(f"{head}_decoder.net.") for name in shapes)
    )
    event_classes = _rows(shapes, "event_decoder.net.bias", 0)
    for variant, encoder in (("24.7.1", "planar_net"), ("per-plane", "lins.u")):
        yield Spec(
            architecture="nugraph3",
            variant=variant,
            planar_features=_rows(shapes, f"encoder.{encoder}.bias", 128),
            nexus_features=_rows(
                shapes, "core_net.plane_to_nexus.convs.<u___nexus___sp>.net.2.bias", 32
            ),
            interaction_features=_rows(
                shapes, "core_net.nexus_to_interaction.convs.<sp___in___evt>.net.2.bias", 32
            ),
            semantic_classes=_rows(shapes, "semantic_decoder.net.u.bias", 0),
            event_classes=event_classes,
            heads=heads,
        )
    yield Spec(
        architecture="nugraph2",
        variant="24.7.1",
        planar_features=_rows(shapes, "encoder.net.u.0.net.0.bias", 64),
        nexus_features=_rows(shapes, "nexus_net.nexus_net.2.net.0.bias", 16),
        interaction_features=0,
        semantic_classes=sum(
            re.fullmatch(r"encoder\.net\.u\.0\.net\.\d+\.bias", name) is not None for name in shapes
        ),
        event_classes=0,
        heads=tuple(head for head in heads if head in ("semantic", "filter")),
    )


def _rows(shapes: Shapes, name: str, default: int) -> int:
    shape = shapes.get(name, ())
    return shape[0] if len(shape) == 1 else default


def _fits(shapes: Shapes, spec: Spec) -> bool:
    return bool(spec.heads) and not any(_difference(shapes, spec))


def _difference(shapes: Shapes, spec: Spec) -> tuple[list[str], list[str], list[str]]:
    expected = spec.expected()
    served = {name for name in shapes if is_served(name)}
    missing = sorted(expected.keys() - served)
    unexpected = sorted(served - expected.keys())
    misshapen = sorted(n for n in served & expected.keys() if shapes[n] != expected[n])
    return missing, unexpected, misshapen


def _some(names: list[str], limit: int = 4) -> str:
    if not names:
        return "none"
    shown = ", ".join(repr(name)[1:-1] for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _nugraph3_layers(spec: Spec) -> Iterator[tuple[str, int, int]]:
    """Yield name, inputs and outputs of every linear layer."""
    planar, nexus, interaction = (
        spec.planar_features,
        spec.nexus_features,
        spec.interaction_features,
    )
    if spec.variant == "24.7.1":
        yield "encoder.planar_net", IN_FEATURES, planar
        yield "encoder.nexus_net", POSITION_FEATURES, nexus
        merged = nexus
    else:
        for plane in PLANES:
            yield f"encoder.lins.{plane}", IN_FEATURES, planar
        merged = len(PLANES) * nexus
    for plane in PLANES:
        yield from _block(f"core_net.plane_net.convs.<{plane}___plane___{plane}>", planar, planar)
        yield from _block(f"core_net.plane_to_nexus.convs.<{plane}___nexus___sp>", planar, nexus)
        yield from _block(f"core_net.nexus_to_plane.convs.<sp___nexus___{plane}>", nexus, planar)
    yield from _block("core_net.nexus_to_interaction.convs.<sp___in___evt>", merged, interaction)
    yield from _block(
        "core_net.interaction_to_nexus.convs.<evt___owns___sp>", interaction, merged, nexus
    )
    if "semantic" in spec.heads:
        for plane in PLANES:
            yield f"semantic_decoder.net.{plane}", planar, spec.semantic_classes
    if "filter" in spec.heads:
        for plane in PLANES:
            yield f"filter_decoder.net.{plane}.0", planar, 1
    if "event" in spec.heads:
        yield "event_decoder.net", interaction, spec.event_classes
    if "vertex" in spec.heads:
        yield "vertex_decoder.net", interaction, POSITION_FEATURES


def _block(
    name: str, source: int, target: int, outputs: int | None = None
) -> Iterator[tuple[str, int, int]]:
    outputs = target if outputs is None else outputs
    yield f"{name}.edge_net.0", source + target, 1
    yield f"{name}.net.0", source + target, outputs
    yield f"{name}.net.2", outputs, outputs


def _nugraph2_layers(spec: Spec) -> Iterator[tuple[str, int, int]]:
    """Yield name, inputs and outputs of every linear layer; most are there once per class."""
    classes, planar, nexus = spec.semantic_classes, spec.planar_features, spec.nexus_features
    joined = planar + IN_FEATURES
    layers = [
        ("nexus_net.nexus_net.0", len(PLANES) * planar, nexus),
        ("nexus_net.nexus_net.2", nexus, nexus),
    ]
    for plane in PLANES:
        down = f"nexus_net.nexus_down.{plane}"
        layers += [
            (f"encoder.net.{plane}.0", IN_FEATURES, planar),
            (f"plane_net.net.{plane}.edge_net.0", 2 * joined, 1),
            (f"plane_net.net.{plane}.node_net.0", 2 * joined, planar),
            (f"plane_net.net.{plane}.node_net.2", planar, planar),
            (f"{down}.edge_net.0", planar + nexus, 1),
            (f"{down}.node_net.0", planar + nexus, planar),
            (f"{down}.node_net.2", planar, planar),
        ]
        if "semantic" in spec.heads:
            layers.append((f"semantic_decoder.net.{plane}", planar, 1))
    for name, inputs, outputs in layers:
        for index in range(classes):
            yield f"{name}.net.{index}", inputs, outputs
    if "filter" in spec.heads:
        for plane in PLANES:
            yield f"filter_decoder.net.{plane}.0", classes * planar, 1
