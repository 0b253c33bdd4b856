"""Read the weights of a model: a safetensors file of float32 arrays."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from numl_formats.card import ModelCard
from numl_formats.repository import CARD_FILE
from numl_serving.errors import ModelFilesError
from numl_serving.shapes import check_weights


def read_weights(directory: Path, card: ModelCard) -> dict[str, NDArray[np.float32]]:
    """Read the weights that a card names, checked against it.

    Raises:
        ModelFilesError: The file is missing, damaged, or not the one that the card describes.
    """
    # Here: environments of other models have this package, and may lack safetensors.
    import safetensors.numpy
    from safetensors import SafetensorError

    path = directory / card.weights.file
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelFilesError(
            f"{path} cannot be read ({error.strerror}): import the checkpoint again"
        ) from None
    if hashlib.sha256(content).hexdigest() != card.weights.sha256:
        raise ModelFilesError(
            f"{path} is not the file {CARD_FILE} describes (its sha256 differs): "
            "import the checkpoint again"
        )
    try:
        weights = safetensors.numpy.load(content)
        for name, array in weights.items():
            if array.dtype != np.float32:
                raise SafetensorError(f"{name} is {array.dtype}")
    except (SafetensorError, KeyError) as error:  # KeyError: a type that numpy lacks
        raise ModelFilesError(
            f"{path} is not a safetensors file of float32 arrays ({error}): import it again"
        ) from None
    try:
        check_weights(card, {name: array.shape for name, array in weights.items()})
    except ModelFilesError as error:
        raise ModelFilesError(f"{path}: {error}: import the checkpoint again") from None
    return weights
