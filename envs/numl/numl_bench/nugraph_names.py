"""nugraph 24.7.1's own names of the weights, to load a served model into nugraph's own code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch
from numl_serving.modelcard import ModelCard
from numpy.typing import NDArray
from torch import Tensor

Place: TypeAlias = tuple[str, tuple[Any, ...]]
"""A layer by `numl_serving.modelcard.weight_shapes`, and the part of it."""

_BLOCK = {"gate": "edge_net.0", "hidden": "net.0", "output": "net.2"}
_CLASS_BLOCK = {"gate": "edge_net.0", "hidden": "node_net.0", "output": "node_net.2"}


def nugraph_state(
    card: ModelCard, weights: Mapping[str, NDArray[Any]], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return weights under nugraph's names.

    Args:
        card: The model.
        weights: Its weights.
        like: State dict of nugraph's model, for the shapes.
    """
    state = {}
    for layer, (name, index) in _layers(card):
        for kind in ("weight", "bias"):
            array = weights[f"{name}.{kind}"]
            # Weights that the planes share are there once.
            first = tuple(min(number, len(array) - 1) for number in index[:1])
            part = array[(*first, *index[1 : array.ndim])]
            state[f"{layer}.{kind}"] = torch.tensor(part).reshape(like[f"{layer}.{kind}"].shape)
    return state


def _layers(card: ModelCard) -> Iterator[tuple[str, Place]]:
    """Yield nugraph's name of every linear layer, and where its weights are."""
    message_passing = _nugraph2 if card.network.kind == "nugraph2" else _nugraph3
    yield from message_passing(card)
    classes, width = card.network.classes, card.network.hit_width
    for head in card.heads:
        name, layer = f"heads.{head.name}", f"{head.name}_decoder.net"
        if head.node == "event":
            yield layer, (name, ())
            continue
        for p, plane in enumerate(card.planes):
            if head.name == "filter":
                yield f"{layer}.{plane}.0", (name, (p,))
            elif card.network.kind == "nugraph3":
                yield f"{layer}.{plane}", (name, (p,))
            else:
                for c in range(classes):
                    own = slice(c * width, (c + 1) * width)
                    yield f"{layer}.{plane}.net.{c}", (name, (p, c, own))


def _nugraph3(card: ModelCard) -> Iterator[tuple[str, Place]]:
    if card.network.nexus_start == "position":
        yield "encoder.planar_net", ("encoder", (0,))
        yield "encoder.nexus_net", ("nexus_encoder", ())
    else:
        for p, plane in enumerate(card.planes):
            yield f"encoder.lins.{plane}", ("encoder", (p,))
    blocks: list[tuple[str, str, tuple[int, ...]]] = [
        ("nexus_to_interaction.convs.<sp___in___evt>", "to_event", ()),
        ("interaction_to_nexus.convs.<evt___owns___sp>", "from_event", ()),
    ]
    for p, plane in enumerate(card.planes):
        blocks += [
            (f"plane_net.convs.<{plane}___plane___{plane}>", "planar", (p,)),
            (f"plane_to_nexus.convs.<{plane}___nexus___sp>", "up", (p,)),
            (f"nexus_to_plane.convs.<sp___nexus___{plane}>", "down", (p,)),
        ]
    for block, name, index in blocks:
        for part, layer in _BLOCK.items():
            yield f"core_net.{block}.{layer}", (f"{name}.{part}", index)


def _nugraph2(card: ModelCard) -> Iterator[tuple[str, Place]]:
    for c in range(card.network.classes):
        for part, layer in {"hidden": "nexus_net.0", "output": "nexus_net.2"}.items():
            yield f"nexus_net.{layer}.net.{c}", (f"nexus.{part}", (c,))
        for p, plane in enumerate(card.planes):
            yield f"encoder.net.{plane}.0.net.{c}", ("encoder", (p, c))
            blocks = {f"plane_net.net.{plane}": "planar", f"nexus_net.nexus_down.{plane}": "down"}
            for block, name in blocks.items():
                for part, layer in _CLASS_BLOCK.items():
                    yield f"{block}.{layer}.net.{c}", (f"{name}.{part}", (p, c))
