"""Checks a weights file against the ``model.json`` beside it: the same bytes, the same heads.

Source of the format: safetensors, "Format": eight bytes give the length of a JSON header, which
gives each tensor's shape and the place of its bytes behind the header.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from deploy.host.errors import RepositoryError
from deploy.host.files import sha256_of
from deploy.triton.card import Head

_HEAD = re.compile(r"heads\.(.+)\.bias")
_REMEDY = "copy both files again, or import the checkpoint again (scripts/import_checkpoint.py)"


def check_digest(weights: Path, sha256: str) -> None:
    try:
        found = sha256_of(weights)
    except OSError as error:
        raise RepositoryError(f"{weights}: {error.strerror}") from None
    if found != sha256:
        raise RepositoryError(
            f"{weights} is not the file that model.json belongs to: its sha256 is {found[:16]}..., "
            f"expected {sha256[:16]}...",
            _REMEDY,
        )


def check_heads(weights: Path, heads: Sequence[Head]) -> None:
    """Check that a weights file has exactly the heads of its ``model.json``, each as wide."""
    there = {
        found[1]: shape[-1]
        for name, shape in read_shapes(weights).items()
        if (found := _HEAD.fullmatch(name)) is not None
    }
    named = {head.name: head.width for head in heads}
    for name in sorted(there.keys() | named.keys()):
        if there.get(name) != named.get(name):
            raise RepositoryError(
                f"{weights}: head {name} has width {there.get(name, 0)}; "
                f"model.json says {named.get(name, 0)}",
                _REMEDY,
            )


def read_shapes(weights: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a weights file, by name; their bytes are not read."""
    try:
        with weights.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
        return {
            name: tuple(map(int, entry["shape"]))
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except OSError as error:
        raise RepositoryError(f"{weights}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, OverflowError, MemoryError, AttributeError):
        raise RepositoryError(f"{weights}: not a safetensors file", _REMEDY) from None
