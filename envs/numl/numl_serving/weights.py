"""Read the weights of a model: a safetensors file of float32 arrays.

Source of the format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numl_serving.errors import ModelFilesError
from numl_serving.modelcard import CARD_FILE, ModelCard, check_weights

_FLOAT32 = np.dtype("<f4")


def read_weights(directory: Path, card: ModelCard) -> dict[str, NDArray[np.float32]]:
    """Read the weights that a card names, checked against it; the arrays are read-only.

    Raises:
        ModelFilesError: The file is missing, damaged, or not the one that the card describes.
    """
    path = directory / card.weights.file
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelFilesError(
            f"{path} cannot be read ({error.strerror}): import the checkpoint again"
        ) from None
    if hashlib.sha256(content).hexdigest() != card.weights.sha256:
        raise ModelFilesError(
            f"{path} is not the file that {CARD_FILE} belongs to (its sha256 differs): "
            "import the checkpoint again"
        )
    try:
        weights = dict(_arrays(content))
        check_weights(card, {name: array.shape for name, array in weights.items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFilesError(
            f"{path} is not a safetensors file of float32 arrays ({error}): import it again"
        ) from None
    except ModelFilesError as error:
        raise ModelFilesError(f"{path}: {error}: import the checkpoint again") from None
    return weights


def _arrays(content: bytes) -> list[tuple[str, NDArray[Any]]]:
    begin = 8 + int.from_bytes(content[:8], "little")
    tensors = json.loads(content[8:begin])
    tensors.pop("__metadata__", None)
    found = []
    for name, facts in tensors.items():
        if facts["dtype"] != "F32":
            raise ValueError(f"{name} is {facts['dtype']}")
        shape, place = tuple(facts["shape"]), begin + facts["data_offsets"][0]
        flat = np.frombuffer(content, _FLOAT32, math.prod(shape), place)
        found.append((name, flat.reshape(shape)))
    return found
