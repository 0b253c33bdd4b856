"""A served model's weights under nugraph's own names, to load them into nugraph's own code.

The opposite of what the importer does, by the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numl_serving.recognition import is_served, modern_name, recognise
from numpy.typing import NDArray
from torch import Tensor

from numl_formats.card import ModelCard

_NORM_EPSILON = 1e-5
"""What nugraph 25.4.0's ``InputNorm`` adds to a variance."""


def with_weights(model: Any, card: ModelCard, weights: Mapping[str, NDArray[Any]]) -> Any:
    """Give nugraph's own model a served model's weights, and return it for inference.

    Raises:
        ValueError: It needs some that the card does not have.
    """
    state = nugraph_state(card, weights, model.state_dict())
    model.load_state_dict(state, strict=False)
    lacking = [name for name, _ in model.named_parameters() if name not in state]
    if any(not name.endswith((".temp", ".norm.count")) for name in lacking):
        raise ValueError(f"nugraph's model needs weights that the card does not have: {lacking}")
    return model.eval()


def nugraph_state(
    card: ModelCard, weights: Mapping[str, NDArray[Any]], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return weights under nugraph's names.

    Args:
        card: The model.
        weights: Its weights.
        like: State dict of nugraph's model.
    """
    names = {modern_name(name): name for name in like if is_served(name)}
    shapes = {modern: tuple(like[name].shape) for modern, name in names.items()}
    found = recognise(shapes, card.network.kind, card.planes)
    state: dict[str, Tensor] = {}
    for name, shape in found.shapes().items():
        layer, _, part = name.rpartition(".")
        pattern = found.layers[layer]
        for plane, row in enumerate(found.names(pattern)):
            array = weights[name]
            if shape[:1] == (-1,):
                array = array[min(plane, len(array) - 1)]  # once, where the planes share it
            for number, own in enumerate(row):
                values = array
                if "{set}" in pattern:
                    values = _of_set(array, number, len(row), head=layer.startswith("heads."))
                key = f"{own}.{part}"
                state[names[key]] = torch.tensor(values).reshape(shapes[key])
    # The importer has folded what normalises the features into the encoder: here it does nothing.
    for name, shape in found.expected().items():
        if name.endswith(".norm.mean"):
            state[names[name]] = torch.zeros(shape)
        elif name.endswith(".norm.var"):
            state[names[name]] = torch.full(shape, 1 - _NORM_EPSILON)
    return state


def _of_set(array: NDArray[Any], number: int, sets: int, *, head: bool) -> NDArray[Any]:
    """Return the part of a feature set; a head's layers are blocks on a diagonal."""
    rows: NDArray[Any] = (
        array.reshape(sets, -1, *array.shape[1:])[number] if head else array[number]
    )
    if head and array.ndim == 2:
        return rows.reshape(len(rows), sets, -1)[:, number]
    return rows
