"""A reference event: what a model must answer, and the comparison that says whether it did."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from deploy.host.errors import RepositoryError
from deploy.host.files import write_atomically
from deploy.triton.card import AGAIN, CARD_FILE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]


GOLDEN_FILE = "golden.npz"

# As in numl_serving: relative to the largest magnitude of the output's column (class), plus a share
# of the whole output's, since float32 leaves no more of a small difference of large numbers. So
# classes differ only where two scores are all but equal.
TOLERANCE, NOISE = 1e-4, 1e-5


@dataclass(frozen=True)
class GoldenEvent:
    """An event and its reference output."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


def read_golden(path: Path) -> GoldenEvent:
    """Read a ``golden.npz`` (arrays ``input/NAME`` and ``output/NAME``).

    Raises:
        RepositoryError: If the file is not such a one.
    """
    import numpy as np  # takes long, and few commands read one

    try:
        with np.load(path, allow_pickle=False) as arrays:
            named = {name: arrays[name] for name in arrays.files}
    except FileNotFoundError:
        raise RepositoryError(f"{path}: no such file") from None
    except OSError as error:
        raise RepositoryError(f"{path}: {error.strerror or error}") from None
    except (EOFError, ValueError, zipfile.BadZipFile):
        # numpy's words are about pickles, which are never read here.
        cause = f"{path}: not a reference event"
        own = "write it with numlkit golden MODEL"
        raise RepositoryError(cause, AGAIN if path.with_name(CARD_FILE).exists() else own) from None
    inputs = {n.removeprefix("input/"): a for n, a in named.items() if n.startswith("input/")}
    outputs = {n.removeprefix("output/"): a for n, a in named.items() if n.startswith("output/")}
    if not inputs or not outputs:
        raise RepositoryError(f"{path}: not a reference event: it lacks inputs or outputs")
    return GoldenEvent(inputs=inputs, outputs=outputs)


def golden_of(folder: Path) -> GoldenEvent | None:
    """Return the reference event of the model in ``folder``, or None if it has none.

    Raises:
        RepositoryError: If the folder does not exist, or its file is not a reference event.
    """
    path = newest_version(folder) / GOLDEN_FILE
    return read_golden(path) if path.exists() else None


def newest_version(folder: Path) -> Path:
    """Return a model's version folder that answers a request that names none."""
    try:
        versions = [path for path in folder.iterdir() if path.name.isdecimal()]
    except OSError as error:
        raise RepositoryError(f"{folder}: {error.strerror}") from None
    return max(versions, key=lambda path: int(path.name), default=folder)


def write_golden(path: Path, golden: GoldenEvent) -> None:
    """Write a reference event: the same one gives the same bytes."""
    import numpy as np

    named: dict[str, Any] = {f"input/{n}": _comparable(a) for n, a in golden.inputs.items()}
    named |= {f"output/{n}": _comparable(a) for n, a in golden.outputs.items()}
    content = io.BytesIO()
    np.savez_compressed(content, **named)
    write_atomically(path, content.getvalue())


def difference(golden: GoldenEvent, answer: Mapping[str, Array]) -> str | None:
    """Return in one line what is wrong with ``answer``, or None."""
    import numpy as np

    for name, want in golden.outputs.items():
        if name not in answer:
            return f"output {name} is missing"
        got = answer[name]
        if got.shape != want.shape:
            return f"output {name} has shape {list(got.shape)}, expected {list(want.shape)}"
        if want.size == 0:
            continue
        if got.size == 0:
            return f"output {name} is empty"
        if want.dtype.kind not in "fc":  # a label, a count, a word: equal or not
            if not np.array_equal(_comparable(got), _comparable(want)):
                return f"output {name} differs"
            continue
        if got.dtype.kind not in "fc":
            return f"output {name} is {got.dtype}, expected {want.dtype}"
        if not np.isfinite(got).all():
            return f"output {name} is not finite"
        magnitude = np.abs(want)
        scale = np.broadcast_to(magnitude.max(axis=0), want.shape)
        allowed = TOLERANCE * scale + NOISE * magnitude.max()
        off = np.abs(got.astype(np.float64) - want)
        if not (off <= allowed).all():  # NaN, which compares false, is wrong, too
            worst = np.unravel_index((off - allowed).argmax(), off.shape)
            return f"output {name} is off by {off[worst]:.3g} at a scale of {scale[worst]:.3g}"
    return None


def _comparable(array: Array) -> Array:
    """Return a comparable array: Triton's strings are objects, a file's are not."""
    return array.astype("S") if array.dtype.kind in "OSU" else array
