"""The reference event of a model: what it must answer, and whether an answer is that.

``golden.npz`` holds arrays ``input/TENSOR`` and ``output/TENSOR``, and ``format``, which is 1 where
it is missing, as in files that a site writes with ``numpy.savez``.

Of several requests (a sequence), or of several responses to one (a decoupled model), each has a
number before the name of the tensor: ``input/0/TENSOR``, ``output/1/TENSOR``. The name may have
slashes, too. Texts are UTF-8, as arrays of bytes (numpy's kind ``S``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from numl_formats.cardfile import read_card
from numl_formats.contract import listed
from numl_formats.errors import FormatError, check_format
from numl_formats.repository import CARD_FILE

# numpy is imported where it is needed: it takes long, and few of the kit's commands do.
if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]

FORMAT = 1
_NUMBER = re.compile(r"[0-9]+/")

TOLERANCE = 1e-4
"""Largest difference allowed, in units of the largest magnitude of the output's column (class)."""

NOISE = 1e-5
"""What is allowed besides, in units of the output's largest magnitude.

A column that is small beside the others (a class that no hit of the event is of) is a small
difference of large numbers: float32 leaves of it what it leaves of them. So classes differ only
where two scores are all but equal.
"""


@dataclass(frozen=True, slots=True)
class GoldenEvent:
    """An event and its reference output, arrays by the names of tensors.

    Attributes:
        clusters: Outputs that number each hit's cluster, whatever the numbers are.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    clusters: tuple[str, ...] = ()

    @property
    def is_sequence(self) -> bool:
        return _are_numbered(self.inputs)

    @property
    def is_decoupled(self) -> bool:
        return not self.is_sequence and _are_numbered(self.outputs)


def _are_numbered(names: Collection[str]) -> bool:
    return bool(names) and all(map(_NUMBER.match, names))


def numbered(messages: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the tensors of several requests, or responses, as a golden file names them."""
    return {f"{n}/{name}": array for n, m in enumerate(messages) for name, array in m.items()}


def tensor_names(names: Collection[str]) -> dict[str, str]:
    """Return, by its name in a golden file, the tensor that each array is of."""
    known = _are_numbered(names)
    return {name: name.partition("/")[2] if known else name for name in names}


def one_by_one(arrays: Mapping[str, Array]) -> list[dict[str, Array]]:
    """Return the requests that `numbered` has put together."""
    found: dict[int, dict[str, Array]] = {}
    for name, array in arrays.items():
        number, _, tensor = name.partition("/")
        found.setdefault(int(number), {})[tensor] = array
    return [found[number] for number in sorted(found)]


def read_golden(path: Path) -> GoldenEvent:
    """Read a ``golden.npz``, with the card beside it if there is one.

    Raises:
        FormatError: It is none, or cannot be read.
    """
    inputs, outputs = _read(path, "input/", "output/")
    card = path.with_name(CARD_FILE)
    return GoldenEvent(inputs, outputs, read_card(card).clusters if card.exists() else ())


def read_inputs(path: Path) -> dict[str, Array]:
    """Read only the event of a ``golden.npz``; raises as `read_golden`."""
    return _read(path, "input/")[0]


def _read(path: Path, *prefixes: str) -> list[dict[str, Array]]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            check_format(int(arrays.get("format", FORMAT)), (FORMAT,), "what wrote it")
            found = [
                {name.removeprefix(p): arrays[name] for name in arrays.files if name.startswith(p)}
                for p in prefixes
            ]
    except FormatError as error:
        raise type(error)(f"{path}: {error}") from None
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file") from None
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None
    except Exception:
        # What numpy, zipfile and its decompressors raise depends on where it is damaged; numpy's
        # words are about pickles, which are never read here.
        raise FormatError(f"{path}: not a reference event") from None
    if not all(found):
        raise FormatError(f"{path}: not a reference event: it lacks inputs or outputs")
    return found


def write_golden(path: Path, golden: GoldenEvent) -> None:
    """Write a golden file, whole or not at all; the same event gives the same bytes.

    Raises:
        FormatError: The file cannot hold one of the arrays.
    """
    import numpy as np

    arrays: dict[str, Any] = {"format": np.int64(FORMAT)}
    for side, tensors in (("input", golden.inputs), ("output", golden.outputs)):
        for name, array in tensors.items():
            try:
                arrays[f"{side}/{name}"] = _as_stored(array)
            except ValueError as error:
                raise FormatError(f"{path.name} cannot hold {side} {name}: {error}") from None
    partial = path.with_name(f"{path.name}.new")
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)
    partial.replace(path)


def difference(golden: GoldenEvent, answer: Mapping[str, Array]) -> str | None:
    """Return in one line how an answer differs from the reference output, or None."""
    faults = disagreements(golden.outputs, answer, golden.clusters)
    return listed(faults) if faults else None


def disagreements(
    expected: Mapping[str, Array], actual: Mapping[str, Array], clusters: Collection[str] = ()
) -> list[str]:
    """Compare answers: the same outputs and shapes, values within the tolerance, all else equal.

    A value may differ by `TOLERANCE` of its column and `NOISE` of the whole output.

    Args:
        clusters: Outputs that number clusters, which reach over planes: the same hits must be
            together, whatever the number of their cluster, and the same ones in none (-1).

    Returns:
        One line for each output that disagrees.
    """
    import numpy as np

    faults = [f"output {name} is missing" for name in expected if name not in actual]
    faults += [f"output {name} is not expected" for name in actual if name not in expected]
    if faults:
        return faults
    for name, want in expected.items():
        fault = _fault(np.asarray(want), np.asarray(actual[name]), exact=name not in clusters)
        if fault is not None:
            faults.append(f"output {name} {fault}")
    labels = [name for name in expected if name in clusters]
    if labels and not faults:
        wanted, found = (np.concatenate([side[n] for n in labels]) for side in (expected, actual))
        if not _same_clusters(wanted, found):
            faults.append(f"outputs {', '.join(labels)} cluster the hits differently")
    return faults


def _fault(want: Array, got: Array, *, exact: bool) -> str | None:
    import numpy as np

    if got.shape != want.shape:
        return f"has shape {list(got.shape)}, expected {list(want.shape)}"
    if (got.dtype.kind in "fc") != (want.dtype.kind in "fc"):
        return f"is {got.dtype}, expected {want.dtype}"
    if not want.size:
        return None
    if want.dtype.kind not in "fc":  # a label, a count, a word
        same = not exact or _same(got, want)
        return None if same else "differs"
    if not np.isfinite(got).all():
        return "is not finite"
    magnitude = np.abs(want)
    scale = np.broadcast_to(magnitude.max(axis=0), want.shape)
    allowed = TOLERANCE * scale + NOISE * magnitude.max()
    off = np.abs(got.astype(np.float64) - want)
    if not (off <= allowed).all():  # NaN, which compares false, is wrong, too
        worst = np.unravel_index((off - allowed).argmax(), off.shape)
        return f"is off by {off[worst]:.3g} at a scale of {scale[worst]:.3g}"
    return None


def _as_stored(array: Array) -> Array:
    """Return an array as a file has it; ValueError if none can."""
    import numpy as np

    if array.dtype.kind == "V":
        raise ValueError(f"{array.dtype.name} is no type of numpy's")
    if array.dtype.kind not in "OU":
        return array
    words = _words(array)
    if any(word.endswith(b"\0") for word in words):
        raise ValueError("a text in it ends with a zero byte, which numpy drops")
    return np.array(words, "S").reshape(array.shape)


def _same(got: Array, want: Array) -> bool:
    import numpy as np

    kinds = {got.dtype.kind, want.dtype.kind}
    if "V" in kinds:  # such as bfloat16, of which a file keeps only the bytes
        return got.dtype.itemsize == want.dtype.itemsize and got.tobytes() == want.tobytes()
    if not kinds <= {*"OSU"}:
        return not kinds & {*"OSU"} and np.array_equal(got, want)
    # Triton's texts are objects. A file's have lost the zero bytes that they may have ended with.
    lost = b"" if kinds == {"O"} else b"\0"
    sides = ([word.rstrip(lost) for word in _words(side)] for side in (got, want))
    return next(sides) == next(sides)


def _words(array: Array) -> list[bytes]:
    """Return the bytes of each text; Triton's clients make a text of anything else."""
    return [v if isinstance(v, bytes) else str(v).encode() for v in array.ravel().tolist()]


def _same_clusters(expected: Array, actual: Array) -> bool:
    import numpy as np

    pairs = np.unique(np.stack([expected, actual]), axis=1)
    one_to_one = all(len(np.unique(labels)) == len(labels) for labels in pairs)
    return one_to_one and bool(((pairs[0] < 0) == (pairs[1] < 0)).all())
