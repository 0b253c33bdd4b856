"""Golden answers: an event and what a model must answer to it, kept beside the weights."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from numl_serving.errors import EventError, ModelFilesError
from numl_serving.event import Event

Outputs: TypeAlias = dict[str, NDArray[Any]]

TOLERANCE = 1e-4
"""Largest difference allowed, in units of an output's largest magnitude.

Two correct float32 implementations were seen to differ from float64 by up to 3.5e-5.
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
        ModelFilesError: The file is missing, damaged or holds no valid event.
    """
    event = read_event(path)
    with np.load(path, allow_pickle=False) as arrays:
        return Golden(event, _named(arrays, _OUTPUT))


def read_event(path: Path) -> Event:
    """Read only the event of a golden file.

    Raises:
        ModelFilesError: The file is missing, damaged or holds no valid event.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return Event.from_tensors(_named(arrays, _INPUT))
    except FileNotFoundError:
        raise ModelFilesError(f"{path} is missing: import the checkpoint with --event") from None
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile, EventError) as error:
        raise ModelFilesError(f"{path} holds no event: {error}") from None


def write_golden(path: Path, golden: Golden) -> None:
    """Write a golden file; the same content gives the same bytes."""
    arrays = {f"{_INPUT}{name}": array for name, array in golden.event.tensors().items()}
    arrays |= {f"{_OUTPUT}{name}": array for name, array in golden.outputs.items()}
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def disagreements(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """Compare answers: the same outputs and shapes, values within `TOLERANCE`, the same classes.

    A class may differ where the expected scores of the two are equal within the tolerance.

    Returns:
        One line for each output that disagrees.
    """
    if expected.keys() != actual.keys():
        return [f"outputs are {sorted(actual)} instead of {sorted(expected)}"]
    return [
        f"{name}: {fault}"
        for name in sorted(expected)
        if (fault := _fault(np.asarray(expected[name]), np.asarray(actual[name]))) is not None
    ]


def _fault(expected: NDArray[Any], actual: NDArray[Any]) -> str | None:
    if expected.shape != actual.shape:
        return f"shape is {list(actual.shape)} instead of {list(expected.shape)}"
    if not expected.size:
        return None
    tolerance = TOLERANCE * float(np.abs(expected).max())
    difference = float(np.abs(actual - expected).max())
    # Written so that NaN, which compares false, is a fault.
    if not difference <= tolerance:
        return f"differs by up to {difference:.3g}, allowed is {tolerance:.3g}"
    if expected.ndim == 2:
        best = expected.max(axis=1)
        chosen = np.take_along_axis(expected, actual.argmax(axis=1)[:, None], axis=1)[:, 0]
        changed = int((best - chosen > tolerance).sum())
        if changed:
            return f"{changed} of {len(best)} classes differ"
    return None


def _named(arrays: Any, prefix: str) -> Outputs:
    return {
        name.removeprefix(prefix): arrays[name] for name in arrays.files if name.startswith(prefix)
    }
