"""A weights file against the ``model.json`` beside it: the same bytes, the same classes.

Source of the format: safetensors, "Format": eight bytes give the length of a JSON header, which
gives each tensor's shape and the place of its bytes behind the header.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.errors import RepositoryError
from deploy.repository.config import WeightFacts

Shapes = Mapping[str, tuple[int, ...]]

_LENGTH_BYTES = 8
_LARGEST_HEADER = 100 * 2**20
# NuGraph3 has one layer for all classes, NuGraph2 one for each.
_TOGETHER = re.compile(r"semantic_decoder\.net\.[^.]+\.bias")
_EACH = re.compile(r"semantic_decoder\.net\.([^.]+)\.net\.\d+\.bias")
_EVENT = "event_decoder.net.bias"
_REMEDY = "copy both files again, or import the checkpoint again (scripts/import_checkpoint.py)"


@dataclass(frozen=True)
class ClassCounts:
    """How many classes the decoders in a weights file tell apart.

    Attributes:
        semantic: Classes of a hit, in each plane's decoder; empty without that head.
        event: Classes of an event; None without that head.
    """

    semantic: frozenset[int]
    event: int | None


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


def check_classes(weights: Path, facts: WeightFacts) -> None:
    """Check that the decoders in ``weights`` have as many classes as ``model.json`` names.

    Args:
        weights: The weights file.
        facts: What ``model.json`` says.

    Raises:
        RepositoryError: If they do not, or the file cannot be read.
    """
    counts = class_counts(read_shapes(weights))
    for head, things, there, names in (
        ("semantic", "hits", counts.semantic or {0}, facts.semantic_classes),
        ("event", "events", {counts.event or 0}, facts.event_classes),
    ):
        named = len(names) if head in facts.heads else 0
        if there != {named}:
            found = " and ".join(map(str, sorted(there)))
            raise RepositoryError(
                f"{weights} tells {found} classes of {things} apart, model.json names {named}",
                _REMEDY,
            )


def class_counts(shapes: Shapes) -> ClassCounts:
    """Return how many classes a network with tensors of these shapes tells apart."""
    counts: dict[str, int] = {}
    for name, shape in shapes.items():
        each = _EACH.fullmatch(name)
        if each is not None:
            counts[each[1]] = counts.get(each[1], 0) + 1
        elif _TOGETHER.fullmatch(name) is not None:
            counts[name] = shape[0]
    event = shapes.get(_EVENT)
    return ClassCounts(frozenset(counts.values()), event[0] if event is not None else None)


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
