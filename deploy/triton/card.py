"""The kit's view of a model card (``model.json``), and of the weights beside it.

``numl_serving.modelcard`` writes the card. The kit does not import that; the file connects the two.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.host.errors import RepositoryError
from deploy.host.files import sha256_of
from deploy.triton.contract import Signature, Tensor

CARD_FILE = "model.json"
AGAIN = (
    "restore it with git checkout, or import the checkpoint again (scripts/import_checkpoint.py)"
)
_COPY = "copy both files again, or import the checkpoint again (scripts/import_checkpoint.py)"
_FORMAT = 2
_TYPES = ("INT32", "FP32")


@dataclass(frozen=True)
class Head:
    """One head of a network: what it answers, for each hit of each plane or for the event.

    Attributes:
        name: ``semantic``, ``filter``, ``event``, ...
        output: Its tensors' name, without ``_`` and the plane or ``evt``.
        classes: The classes' names; empty if it is not a classifier.
    """

    name: str
    output: str
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Card:
    """What a model card says.

    Attributes:
        network: The kind of network, ``nugraph3`` or ``nugraph2``.
        signature: The tensors of requests and answers, in the card's order.
    """

    network: str
    signature: Signature
    heads: tuple[Head, ...]
    sha256: str
    demo: bool = False


def read_card(folder: Path) -> Card:
    path = folder / CARD_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            cause = f"{path}: its format is {content['format']}; this kit reads {_FORMAT}"
            raise RepositoryError(cause, AGAIN)
        return Card(
            network=str(content["network"]["kind"]),
            signature=Signature(_tensors(content["inputs"]), _tensors(content["outputs"])),
            heads=tuple(
                Head(
                    name=str(head["name"]),
                    output=str(head["output"]),
                    classes=tuple(head["classes"] or ()),
                )
                for head in content["heads"]
            ),
            sha256=str(content["weights"]["sha256"]),
            demo=bool(content["demo"]),
        )
    except OSError as error:
        raise RepositoryError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise RepositoryError(f"{path}: not a model card: {error}", AGAIN) from None
    except KeyError as error:
        raise RepositoryError(f"{path}: has no {error.args[0]!r}", AGAIN) from None


def _tensors(listed: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    tensors = {}
    for entry in listed:
        if entry["data_type"] not in _TYPES:
            raise ValueError(f"{entry['name']} is {entry['data_type']}, not {' or '.join(_TYPES)}")
        dims = tuple(map(int, entry["dims"]))
        optional = bool(entry.get("optional", False))
        tensors[str(entry["name"])] = Tensor(entry["data_type"], dims, optional)
    return tensors


def check_digest(weights: Path, sha256: str) -> None:
    try:
        found = sha256_of(weights)
    except OSError as error:
        raise RepositoryError(f"{weights}: {error.strerror}") from None
    if found != sha256:
        raise RepositoryError(
            f"{weights} is not the file model.json describes: its sha256 is {found[:16]}..., "
            f"expected {sha256[:16]}...",
            _COPY,
        )
