"""Compare answers entry by entry."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

RANDOM = 6
"""How many times nugraph's own error is allowed with random weights."""


def differences(
    expected: Mapping[str, NDArray[Any]],
    actual: Mapping[str, NDArray[Any]],
    tolerance: float = 1e-5,
) -> list[str]:
    """Say where answers differ; empty if they agree.

    Every entry is compared on a scale of its own: its size or, as a small number may be the
    difference of large ones, the root mean square of its row (the numbers of its node; without
    rows of the tensor). ``tolerance`` is in units of it. Integers have to be equal. A tensor that
    differs is told by its worst entry.
    """
    if expected.keys() != actual.keys():
        return [f"outputs are {sorted(actual)}, not {sorted(expected)}"]
    found = []
    for name, wanted in expected.items():
        given = actual[name]
        if given.shape != wanted.shape:
            found.append(f"{name} has shape {given.shape}, not {wanted.shape}")
        elif wanted.size:
            error = _errors(wanted, given)
            worst = np.unravel_index(np.argmax(error), error.shape)
            limit = 0 if np.issubdtype(wanted.dtype, np.integer) else tolerance
            if not error[worst] <= limit:
                place = ", ".join(map(str, worst))
                found.append(
                    f"{name}[{place}] is {given[worst]!s}, not {wanted[worst]!s}: "
                    f"{error[worst]:.1e} of its scale"
                )
    return found


def largest_error(wanted: NDArray[Any], given: NDArray[Any]) -> float:
    """Return the largest difference of an output, in units of the entries' scales."""
    return float(_errors(wanted, given).max(initial=0.0))


def assert_as_near_as_nugraph(
    exact: Mapping[str, NDArray[Any]],
    rounded: Iterable[Mapping[str, NDArray[Any]]],
    actual: Mapping[str, NDArray[Any]],
    factor: float = 1,
) -> None:
    """Check an answer against nugraph's in float64, with an allowance for float32.

    It is 1e-5 of each entry's scale, or what nugraph in float32 is off in the worst plane of the
    head, so many times. Random weights, and few steps of training, make much of a rounding, now of
    one's, now of the other's: they need a factor, and 5 for the outputs' median.

    Where nugraph answers several times, each rounded otherwise, its worst answer counts: the three
    numbers of a vertex can all be right by luck. The first is mostly enough, and the others are
    not asked for then.
    """
    assert exact.keys() <= actual.keys()
    off: dict[str, float] = {}
    theirs = 0.0
    found = ["nugraph gave no answer"]
    for single in rounded:
        errors = {name: largest_error(wanted, single[name]) for name, wanted in exact.items()}
        for name, error in errors.items():
            off[_head(name)] = max(off.get(_head(name), 0.0), error)
        theirs = max(theirs, float(np.median(list(errors.values()))))
        allowed = {head: factor * max(1e-5, each) for head, each in off.items()}
        found = _beyond(exact, actual, allowed, theirs)
        if not found:
            break
    assert found == []


def _beyond(
    exact: Mapping[str, NDArray[Any]],
    actual: Mapping[str, NDArray[Any]],
    allowed: Mapping[str, float],
    median: float,
) -> list[str]:
    """Say where an answer is off more than its head may be, or in the median five times as much."""
    found = []
    for name, wanted in exact.items():
        found += differences({name: wanted}, {name: actual[name]}, allowed[_head(name)])
    ours = np.median([largest_error(wanted, actual[name]) for name, wanted in exact.items()])
    if not ours < max(1e-5, 5 * median):
        found.append(f"the outputs' median is off by {ours:.1e}, nugraph's by {median:.1e}")
    return found


def _head(output: str) -> str:
    """Return what an output is of, whatever its plane: ``x_semantic`` of ``x_semantic_u``."""
    return output.rpartition("_")[0]


def _errors(wanted: NDArray[Any], given: NDArray[Any]) -> NDArray[np.float64]:
    """Return each entry's difference in units of its scale; NaN, which argmax finds, if not."""
    exact = wanted.astype(np.float64)
    axes = tuple(range(1, wanted.ndim)) or None
    local = np.sqrt(np.mean(np.square(exact), axis=axes, keepdims=True))
    scale = np.maximum(np.maximum(np.abs(exact), local), np.finfo(np.float32).tiny)
    errors: NDArray[np.float64] = np.abs(given.astype(np.float64) - exact) / scale
    return errors
