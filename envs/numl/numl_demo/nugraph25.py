"""nugraph 25.4.0 and pynuml 25.4.0 in an environment that has 24.7.1 of both.

They are installed into a folder of their own (``envs/nugraph25.txt``), which goes first on the
path. Both generations use the same package names, so a process can have only one of them. This
module stands in for what nugraph 25.4.0 imports and the environment lacks: `cuml` and
`torch_scatter` with equivalent functions, `wandb` with bare names, which only annotations and
unused reports mention.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import mpi4py
import sklearn.cluster  # type: ignore[import-untyped]
import torch

VERSION = "25.4.0"


class DBSCAN(sklearn.cluster.DBSCAN):  # type: ignore[misc]  # scikit-learn has no types
    """cuml's DBSCAN with cuml's defaults, by scikit-learn: cuml needs a GPU."""

    def __init__(self) -> None:
        super().__init__(eps=0.5, min_samples=5)


def scatter_max(
    src: torch.Tensor, index: torch.Tensor, out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Like torch_scatter's: the largest value per index, and its position."""
    largest = out.scatter_reduce(0, index, src, "amax")
    place = torch.full(out.shape, src.shape[0])
    where = torch.nonzero(src == largest[index])[:, 0]
    return largest, place.scatter_reduce(0, index[where], where, "amin")


_STAND_INS: Mapping[str, Mapping[str, Any]] = {
    "cuml": {"DBSCAN": DBSCAN},
    "torch_scatter": {"scatter_max": scatter_max},
    "wandb": {"Table": None, "Html": None, "log": None},
}


def lay_beside(folder: Path) -> None:
    """Make ``import nugraph`` and ``import pynuml`` find 25.4.0 in this process.

    Args:
        folder: Where they are unpacked.

    Raises:
        ImportError: They are not there, or another nugraph or pynuml has been imported before.
    """
    taken = sorted({"nugraph", "pynuml"} & sys.modules.keys())
    if taken:
        raise ImportError(f"{taken[0]} is already imported: nugraph {VERSION} comes too late")
    if not (folder / f"nugraph-{VERSION}.dist-info").is_dir():
        raise ImportError(f"there is no nugraph {VERSION} in {folder}: scripts/test unpacks it")
    # pynuml imports MPI, which leaves shared memory behind when a process with it is killed.
    mpi4py.rc.initialize = False
    sys.path.insert(0, str(folder))
    for name, content in _STAND_INS.items():
        module = ModuleType(name)
        vars(module).update(content)
        sys.modules.setdefault(name, module)
