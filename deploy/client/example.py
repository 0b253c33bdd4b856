"""The example request of a site's model, which its ``client.py`` makes."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.host.errors import RepositoryError
from numl_formats.golden import numbered

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLIENT = "client.py"
_REMEDY = (
    "def inputs(): return {name: numpy array} for each input, always the same ones; of a sequence, "
    "a list of such requests"
)


def example_inputs(folder: Path) -> dict[str, NDArray[Any]]:
    """Return what ``inputs()`` in the client of the model in ``folder`` returns.

    A list of requests is numbered, as in a golden file.

    Raises:
        RepositoryError: There is no such function, or it fails.
    """
    import numpy as np

    path = folder / CLIENT
    if not path.is_file():
        raise RepositoryError(f"{path}: no such file", f"write one, with {_REMEDY}")
    try:
        with _beside(folder.absolute()):
            made = runpy.run_path(str(path))["inputs"]()
        made = numbered(made) if isinstance(made, list) else dict(made)
        found = {str(name): np.asarray(array) for name, array in made.items()}
    except (Exception, SystemExit) as error:  # someone else's code
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RepositoryError(f"{path}: inputs() fails: {reason}", _REMEDY) from error
    if not found:
        raise RepositoryError(f"{path}: inputs() returns no tensor", _REMEDY)
    return found


@contextmanager
def _beside(folder: Path) -> Iterator[None]:
    """Let code import modules of its folder, as a script may; nothing compiled is left there."""
    before = sys.path[:], sys.dont_write_bytecode, set(sys.modules)
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode, known = before
        for name in sys.modules.keys() - known:  # another model may have one of the same name
            if Path(getattr(sys.modules[name], "__file__", None) or "").is_relative_to(folder):
                del sys.modules[name]
