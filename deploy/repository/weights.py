"""A weights file against the ``model.json`` beside it: the same bytes, the same heads.

Source of the format: safetensors, "Format": eight bytes give the length of a JSON header, which
gives each tensor's shape and the place of its bytes behind the header.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.errors import RepositoryError
from deploy.repository.card import Head

Shapes = Mapping[str, tuple[int, ...]]

_LENGTH_BYTES = 8
_LARGEST_HEADER = 100 * 2**20
_HEAD = re.compile(r"heads\.(.+)\.bias")
_REMEDY = "copy both files again, or import the checkpoint again (scripts/import_checkpoint.py)"


def check_digest(weights: Path, sha256: str) -> None:
    """Check that ``weights`` is the file that its ``model.json`` names.

    Raises:
        RepositoryError: If it is not, or cannot be read.
    """
    try:
        with weights.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise RepositoryError(f"{weights}: {error.strerror}") from None
    if found != sha256:
        raise RepositoryError(
            f"{weights} is not the file that model.json belongs to: its sha256 is {found[:16]}..., "
            f"expected {sha256[:16]}...",
            _REMEDY,
        )


def check_heads(weights: Path, heads: Sequence[Head]) -> None:
    """Check that ``weights`` has these heads and no others, each as wide as it should be.

    Args:
        weights: The weights file.
        heads: What ``model.json`` says.

    Raises:
        RepositoryError: If it does not, or the file cannot be read.
    """
    there = {
        found[1]: shape[-1]
        for name, shape in read_shapes(weights).items()
        if (found := _HEAD.fullmatch(name)) is not None
    }
    named = {head.name: head.width for head in heads}
    for name in sorted(there.keys() | named.keys()):
        if there.get(name) != named.get(name):
            raise RepositoryError(
                f"{weights} has {there.get(name, 0)} numbers for head {name}, "
                f"model.json says {named.get(name, 0)}",
                _REMEDY,
            )


def read_shapes(weights: Path) -> Shapes:
    """Return the shapes of the tensors in a weights file, by name; their bytes are not read.

    Raises:
        RepositoryError: If it is not such a file, or cut off.
    """
    try:
        with weights.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            header = stream.read(length) if length <= _LARGEST_HEADER else b""
        content = json.loads(header)
        tensors = {name: entry for name, entry in content.items() if name != "__metadata__"}
        shapes = {name: tuple(map(int, entry["shape"])) for name, entry in tensors.items()}
        end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
    except OSError as error:
        raise RepositoryError(f"{weights}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise RepositoryError(f"{weights}: not a safetensors file", _REMEDY) from None
    if weights.stat().st_size != _LENGTH_BYTES + length + end:
        raise RepositoryError(f"{weights} is cut off, or longer than it says", _REMEDY)
    return shapes
