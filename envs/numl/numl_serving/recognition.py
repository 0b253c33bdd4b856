"""Recognise a network by its weights' names and shapes, and convert them to the card's layout."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numl_formats.card import (
    EMBEDDED_HEADS,
    EXTENSION_FEATURES,
    Clustering,
    Embedding,
    Head,
    NetworkSpec,
)
from numl_serving import generations
from numl_serving.errors import ModelFilesError
from numl_serving.generations import GENERATIONS, Generation, HeadRow
from numl_serving.shapes import shapes_of

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Weights = dict[str, NDArray[np.float32]]

DEFAULT_PLANES = ("u", "v", "y")
DEFAULT_ITERATIONS = 5
"""Message-passing iterations assumed where a checkpoint does not record them."""

_NORM_EPSILON = 1e-5
"""What nugraph 25.4's ``InputNorm`` adds to a variance."""

# What only training uses.
_NOT_SERVED = re.compile(
    r"(^|\.)(temp|loss\..*|recall\..*|precision\..*|cm_recall\..*|cm_precision\..*|confusion\..*"
    r"|norm\.count)$"
)
# PyTorch Geometric wrote the edge types of a HeteroConv as u__plane__u before it wrote
# <u___plane___u>.
_OLD_EDGE_TYPE = re.compile(r"\.convs\.(\w+?)__(plane|nexus|in|owns)__(\w+?)\.")


@dataclass(frozen=True, slots=True)
class Recognised:
    """What names and shapes of the weights tell of a network.

    Attributes:
        generation: Its generation.
        network: Its message passing.
        planes: Names of the planes.
        features: Number of hit features.
        heads: Its heads; the classes have no names yet.
        layers: Pattern of nugraph's name for each layer of `weight_shapes`.
        unused: Shape of each weight, by nugraph's name, of an embedding without an instance head.
    """

    generation: Generation
    network: NetworkSpec
    planes: tuple[str, ...]
    features: int
    heads: tuple[Head, ...]
    layers: Mapping[str, str]
    unused: Shapes

    @property
    def classified(self) -> frozenset[str]:
        """Names of the heads whose numbers are classes."""
        return frozenset(row.name for row in generations.HEADS if row.named_classes)

    @property
    def clustering(self) -> Clustering | None:
        """How its hits become instances."""
        there = {head.name: head.output for head in self.heads}
        dbscan = self.generation.dbscan
        if dbscan is None or "instance" not in there:
            return None
        # As nugraph's InstanceDecoder has it: class 6 is "diffuse".
        return Clustering(
            output="x_i",
            embedding=there["instance"],
            eps=dbscan.eps,
            min_samples=dbscan.min_samples,
            signal=there.get("filter"),
            semantic=there.get("semantic"),
            background=6,
        )

    def shapes(self) -> dict[str, Shape]:
        """Return name and shape of the card's weights, as `weight_shapes` does."""
        return shapes_of(self.network, len(self.planes), self.features, self.heads)

    def names(self, pattern: str) -> list[list[str]]:
        """Return nugraph's names for a pattern: by plane, and in it by feature set.

        There is one plane, or one set, where the pattern has no place for it.
        """
        by_plane = "{plane}" in pattern or "{index}" in pattern
        sets = range(self.network.classes if "{set}" in pattern else 1)
        return [
            [pattern.format(plane=plane, index=index, set=each) for each in sets]
            for index, plane in enumerate(self.planes if by_plane else self.planes[:1])
        ]

    def expected(self) -> dict[str, Shape]:
        """Return nugraph's name and shape of all weights that the network uses."""
        shapes = dict(self.unused)
        card = self.shapes()
        for layer, pattern in self.layers.items():
            given = card[f"{layer}.weight"]
            outputs, inputs = (1, given[-1]) if layer.endswith(".gate") else given[-2:]
            if layer.startswith("heads.") and "{set}" in pattern:
                outputs, inputs = (n // self.network.classes for n in (outputs, inputs))
            for name in (name for row in self.names(pattern) for name in row):
                shapes[f"{name}.weight"] = (outputs, inputs)
                shapes[f"{name}.bias"] = (outputs,)
        for module in self._norm_modules():
            shapes |= {f"{module}.{what}": (self.features,) for what in ("mean", "var")}
        return shapes

    def difference(self, shapes: Shapes) -> tuple[list[str], list[str], list[str]]:
        """Return the names that are missing, unexpected and of another shape."""
        expected = self.expected()
        missing = sorted(expected.keys() - shapes.keys())
        unexpected = sorted(shapes.keys() - expected.keys())
        # A trained NuGraph2 of 25.4 has statistics for each of its feature sets, all the same.
        norms = tuple(self._norm_modules())
        by_set = (self.network.classes, self.features)
        misshapen = sorted(
            name
            for name in shapes.keys() & expected.keys()
            if shapes[name] != expected[name]
            and not (name.startswith(norms) and shapes[name] == by_set)
        )
        return missing, unexpected, misshapen

    def fits(self, shapes: Shapes) -> bool:
        """Return whether these are exactly its weights."""
        return bool(self.heads) and not any(self.difference(shapes))

    def weights(self, state: Mapping[str, NDArray[Any]], dtype: type[Any] = np.float32) -> Weights:
        """Return the weights of a checkpoint as the card describes them.

        Layers of planes or sets are stacked; planes that share their weights have them once.

        Args:
            state: The checkpoint's weights by nugraph's names.
            dtype: Of the result, float32 for a weights file.
        """
        state = self._with_norm_folded(state)
        found: Weights = {}
        for name, shape in self.shapes().items():
            layer, _, part = name.rpartition(".")
            pattern = self.layers[layer]
            grid = np.stack(
                [[state[f"{each}.{part}"] for each in row] for row in self.names(pattern)]
            )
            if part == "weight" and layer.startswith("heads.") and "{set}" in pattern:
                grid = _block_diagonal(grid)
            found[name] = grid.astype(dtype).reshape(shape)
        return _shared(found, [name for name, shape in self.shapes().items() if shape[:1] == (-1,)])

    def _norm_modules(self) -> list[str]:
        pattern = self.generation.input_norm
        return [] if pattern is None else [row[0] for row in self.names(pattern)]

    def _with_norm_folded(self, state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Fold the input norm, ``(x - mean) / sqrt(var + 1e-5)``, into the encoder."""
        folded = dict(state)
        modules = self._norm_modules()
        encoders = self.names(self.layers["encoder"]) if modules else []
        starts = [self.layers[n] for n in ("beta.start", "coordinates.start") if n in self.layers]
        for module, names in zip(modules, encoders, strict=True):
            mean, var = (
                np.broadcast_to(
                    state[f"{module}.{what}"], (len(names) + len(starts), self.features)
                )
                for what in ("mean", "var")
            )
            scale = 1 / np.sqrt(var.astype(np.float64) + _NORM_EPSILON)
            for name, shift, factor in zip([*names, *starts], mean, scale, strict=True):
                weight = state[f"{name}.weight"] * factor
                folded[f"{name}.weight"] = weight
                folded[f"{name}.bias"] = state[f"{name}.bias"] - weight @ shift
        return folded


def without_empty_extension(
    state: Mapping[str, NDArray[Any]], found: Recognised
) -> dict[str, NDArray[Any]] | None:
    """Take out the feature extension of a network whose training filled it with zeros.

    nugraph's main branch appends the four features but does not write their values (up to 1b49275
    at least): the statistics of the input then have neither mean nor variance, and the weights on
    the features do nothing.

    Returns:
        The weights without those features, or None where the training saw them.
    """
    norm, count = found.generation.input_norm, len(EXTENSION_FEATURES)
    widths = {len(graphs.features) for graphs in found.generation.graphs}
    if found.network.kind != "nugraph3" or norm is None or found.features - count not in widths:
        return None
    statistics = [f"{norm}.{what}" for what in ("mean", "var")]
    if any(state[name][-count:].any() for name in statistics):
        return None
    inputs = ["encoder.planar_net"]
    inputs += [name for layer, name in found.generation.embedding.items() if "start" in layer]
    less = {*statistics, *(f"{name}.weight" for name in inputs)}
    return {name: array[..., :-count] if name in less else array for name, array in state.items()}


def is_served(name: str) -> bool:
    """Return whether inference uses the weight of this name."""
    return _NOT_SERVED.search(name) is None


def modern_name(name: str) -> str:
    """Return a weight's name as the current PyTorch Geometric writes it."""
    return _OLD_EDGE_TYPE.sub(r".convs.<\1___\2___\3>.", name)


def recognise(
    shapes: Shapes,
    kind: str,
    planes: Sequence[str] | None = None,
    iterations: int = DEFAULT_ITERATIONS,
) -> Recognised:
    """Find the generation that a state dict belongs to.

    Args:
        shapes: Shape of every weight that is served, by its modern name.
        kind: nugraph3 or nugraph2, as the user says.
        planes: Names of the planes in the order of their numbers; None: as the weights have them.
        iterations: Number of message-passing iterations.

    Raises:
        ModelFilesError: No generation fits; names what is missing, unexpected and supported.
    """
    candidates = [_candidate(shapes, each, planes, iterations) for each in GENERATIONS]
    same = [each for each in candidates if each.network.kind == kind]
    for found in [*same, *candidates]:
        if found.fits(shapes):
            if found.network.kind == kind:
                return found
            raise ModelFilesError(
                f"the weights are those of {found.network.kind}, not of {kind}: "
                f"import them with --model {found.network.kind}"
            )
    closest = min(same, key=lambda each: sum(map(len, each.difference(shapes))))
    missing, unexpected, misshapen = closest.difference(shapes)
    raise ModelFilesError(
        f"the weights match no known {kind}; closest is {closest.generation.origin} with planes "
        f"{', '.join(closest.planes)}: missing {_some(missing)}, unexpected {_some(unexpected)}, "
        f"with the wrong shape {_some(misshapen)}, "
        f"heads {_some([head.name for head in closest.heads])}; supported are "
        + ", ".join(f"{each.kind} of {each.origin}" for each in GENERATIONS)
    )


def _candidate(
    shapes: Shapes, generation: Generation, planes: Sequence[str] | None, iterations: int
) -> Recognised:
    """Return the network of a generation that a state dict would be, read from a few names."""
    known = tuple(planes or _planes_in(shapes, generation.layers["planar.gate"]) or DEFAULT_PLANES)
    first = {"plane": known[0], "index": 0}

    def size(layer: str, axis: int = 0) -> int:
        name = generation.layers[layer].format(**first, set=0)
        shape = shapes.get(f"{name}.weight", ())
        return max(shape[axis], 1) if len(shape) == 2 else 1

    is_nugraph3 = generation.kind == "nugraph3"
    sets = _count(shapes, generation.layers["encoder"], first)
    network = NetworkSpec(
        kind=generation.kind,
        generation=generation.name,
        iterations=iterations,
        hit_width=size("planar.output"),
        nexus_width=size("up.output" if is_nugraph3 else "nexus.output"),
        event_width=size("to_event.output") if is_nugraph3 else 0,
        classes=sets,
        nexus_start=generation.nexus_start,
        nexus=generation.nexus,
    )
    heads: list[Head] = []
    layers = dict(generation.layers)
    for row in generations.HEADS:
        for pattern in row.layers:
            bias = shapes.get(pattern.format(**first, set=0) + ".bias")
            if bias is not None and len(bias) == 1:
                heads.append(_head(row, bias[0] * (sets if "{set}" in pattern else 1), generation))
                layers[f"heads.{row.name}"] = pattern
                break
    found = Recognised(generation, network, known, size("encoder", 1), tuple(heads), layers, {})
    return _with_embedding(found, shapes) if generation.embedding else found


def _with_embedding(found: Recognised, shapes: Shapes) -> Recognised:
    """Add the instance embedding to the network, or to what it does not use."""
    patterns = found.generation.embedding
    width, hidden = (
        (shapes.get(f"{patterns[name]}.bias") or (1,))[0]  # a scalar fits none
        for name in ("coordinates.start", "coordinates.hidden")
    )
    embedding = Embedding(width, hidden, 3 if "coordinates.middle" in patterns else 2)
    there = replace(
        found,
        network=replace(found.network, embedding=embedding),
        layers={**found.layers, **patterns},
    )
    if any(head.name in EMBEDDED_HEADS for head in found.heads):
        return there
    core = {name for name, pattern in patterns.items() if not name.endswith(".decoder")}
    shapes_there = there.shapes()
    unused = {
        f"{patterns[layer]}.{part}": shapes_there[f"{layer}.{part}"]
        for layer in core
        for part in ("weight", "bias")
    }
    return replace(found, unused=unused)


def _head(row: HeadRow, width: int, generation: Generation) -> Head:
    ends_raw = row.activation == "softmax" and not generation.softmax
    return Head(row.name, row.output, row.node, width, "none" if ends_raw else row.activation)


def _planes_in(shapes: Iterable[str], pattern: str) -> tuple[str, ...]:
    """Return the planes matched by a pattern, in order of appearance."""
    expression = re.escape(pattern.replace("{set}", "0") + ".weight")
    expression = expression.replace(r"\{plane\}", r"(?P<plane>\w+?)", 1)
    expression = expression.replace(r"\{plane\}", "(?P=plane)")
    matches = (re.fullmatch(expression, name) for name in shapes)
    return tuple(match["plane"] for match in matches if match and "{plane}" in pattern)


def _count(shapes: Shapes, pattern: str, first: Mapping[str, Any]) -> int:
    """Return the number of feature sets matched by a pattern, at least 1."""
    found = 1
    while "{set}" in pattern and f"{pattern.format(**first, set=found)}.weight" in shapes:
        found += 1
    return found


def _block_diagonal(grid: NDArray[Any]) -> NDArray[Any]:
    """Make one layer of those of the sets: ``[P, C, O, I]`` to ``[P, C O, C I]``, zero between."""
    planes, sets, outputs, inputs = grid.shape
    joined = np.zeros((planes, sets, outputs, sets, inputs), grid.dtype)
    for each in range(sets):
        joined[:, each, :, each] = grid[:, each]
    return joined.reshape(planes, sets * outputs, sets * inputs)


def _shared(weights: Weights, by_plane: Sequence[str]) -> Weights:
    """Store weights shared by all planes once: a whole block, or any other layer."""
    blocks: dict[str, list[str]] = {}
    for name in by_plane:
        layer = name.rpartition(".")[0]
        block = layer if layer.startswith("heads.") else layer.partition(".")[0]
        blocks.setdefault(block, []).append(name)
    for names in blocks.values():
        if all((weights[name] == weights[name][:1]).all() for name in names):
            weights |= {name: weights[name][:1] for name in names}
    return weights


def _some(names: Sequence[str], limit: int = 4) -> str:
    if not names:
        return "none"
    shown = ", ".join(repr(name)[1:-1] for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
