"""Golden answers: an event and its reference output, kept beside the weights."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from numl_serving.cardfile import read_card
from numl_serving.errors import EventError, ModelFilesError
from numl_serving.event import Event
from numl_serving.modelcard import CARD_FILE

Outputs: TypeAlias = dict[str, NDArray[Any]]

TOLERANCE = 1e-4
"""Largest difference allowed, in units of the largest magnitude of the output's column (class)."""

NOISE = 1e-5
"""What is allowed besides, in units of the output's largest magnitude.

A column that is small beside the others (a class that no hit of the event is of) is a small
difference of large numbers: float32 leaves of it what it leaves of them.
"""

_INPUT = "input/"
_OUTPUT = "output/"


@dataclass(frozen=True, slots=True)
class Golden:
    """An event and the expected outputs by name."""

    event: Event
    outputs: Outputs


def read_golden(path: Path) -> Golden:
    """Read a golden file: arrays ``input/<tensor>`` and ``output/<tensor>``.

    Raises:
        ModelFilesError: The file is missing, damaged or has no event of the model whose card
            lies beside it.
    """
    event = read_event(path)
    with np.load(path, allow_pickle=False) as arrays:
        return Golden(event, _named(arrays, _OUTPUT))


def read_event(path: Path) -> Event:
    """Read only the event of a golden file.

    Raises:
        ModelFilesError: As `read_golden`.
    """
    schema = read_card(path.with_name(CARD_FILE)).schema
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return Event.from_tensors(_named(arrays, _INPUT), schema)
    except FileNotFoundError:
        raise ModelFilesError(f"{path} is missing: import the checkpoint with --event") from None
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile, EventError) as error:
        raise ModelFilesError(f"{path} has no event: {error}") from None


def write_golden(path: Path, golden: Golden) -> None:
    """Write a golden file; the same content gives the same bytes."""
    arrays: dict[str, Any] = {f"{_INPUT}{n}": a for n, a in golden.event.tensors().items()}
    arrays |= {f"{_OUTPUT}{name}": array for name, array in golden.outputs.items()}
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def disagreements(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """Compare answers: the same outputs and shapes, values within the tolerance, the same clusters.

    A value may differ by `TOLERANCE` of its column and `NOISE` of the whole output: so classes
    differ only where two scores are all but equal. Integers are labels of clusters, which reach
    over planes: the same hits must be together, whatever the number of their cluster, and the
    same ones in none (-1).

    Returns:
        One line for each output that disagrees.
    """
    if expected.keys() != actual.keys():
        return [f"outputs are {sorted(actual)} instead of {sorted(expected)}"]
    names = sorted(expected)
    pairs = {name: (np.asarray(expected[name]), np.asarray(actual[name])) for name in names}
    faults = [f"{name}: {fault}" for name in names if (fault := _fault(*pairs[name])) is not None]
    labels = [name for name in names if pairs[name][0].dtype.kind == "i"]
    if labels and not faults:
        wanted, found = (np.concatenate([pairs[name][i] for name in labels]) for i in (0, 1))
        if not _same_clusters(wanted, found):
            faults.append(f"{', '.join(labels)}: hits are clustered differently")
    return faults


def _fault(expected: NDArray[Any], actual: NDArray[Any]) -> str | None:
    if expected.shape != actual.shape:
        return f"shape is {list(actual.shape)} instead of {list(expected.shape)}"
    if expected.dtype.kind != actual.dtype.kind:
        return f"type is {actual.dtype} instead of {expected.dtype}"
    if not expected.size or expected.dtype.kind == "i":
        return None
    magnitude = np.abs(expected)
    allowed = TOLERANCE * magnitude.max(axis=0) + NOISE * magnitude.max()
    difference = np.abs(actual - expected)
    # Written so that NaN, which compares false, is a fault.
    if not (difference <= allowed).all():
        excess = np.where(np.isnan(difference), np.inf, difference - allowed)
        worst = np.unravel_index(excess.argmax(), excess.shape)
        limit = np.broadcast_to(allowed, excess.shape)[worst]
        return f"differs by up to {difference[worst]:.3g}; allowed: {limit:.3g}"
    return None


def _same_clusters(expected: NDArray[Any], actual: NDArray[Any]) -> bool:
    pairs = np.unique(np.stack([expected, actual]), axis=1)
    one_to_one = all(len(np.unique(labels)) == len(labels) for labels in pairs)
    return one_to_one and bool(((pairs[0] < 0) == (pairs[1] < 0)).all())


def _named(arrays: Any, prefix: str) -> Outputs:
    return {
        name.removeprefix(prefix): arrays[name] for name in arrays.files if name.startswith(prefix)
    }
