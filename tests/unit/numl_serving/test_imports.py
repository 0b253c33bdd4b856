"""A model instance imports what it needs to answer, and no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numl_serving
import numpy as np
from model_files import model_directory
from scipy import spatial

SOURCE = str(Path(numl_serving.__file__).parents[1])
# What NuGraph's own stack would bring, and what only compilers and other triangulations need.
UNWANTED = (
    "h5py",
    "matplotlib",
    "networkx",
    "pandas",
    "pynuml",
    "pytorch_lightning",
    "scipy.sparse",
    "scipy.spatial.distance",
    "sklearn",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch._meta_registrations",
    "torch_geometric",
)


def python(code: str) -> list[str]:
    """Run code in a Python of its own, as a model instance is; returns the words it prints.

    A stub has imported the backend's module before, which exists nowhere else: an empty one.
    """
    start = (
        f"import sys, types; sys.path.insert(0, {SOURCE!r})\n"
        "sys.modules['triton_python_backend_utils'] = types.ModuleType('backend')\n"
    )
    command = [sys.executable, "-c", start + code]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()


def test_nothing_is_imported_that_no_answer_needs() -> None:
    imported = set(python("import numl_serving.triton; print(*sys.modules)"))
    assert "torch" in imported
    assert imported & set(UNWANTED) == set()


def test_after_a_lean_import_a_model_answers_and_everything_else_can_still_be_had(
    tmp_path: Path,
) -> None:
    directory = model_directory("24.7.1", tmp_path)
    said = python(
        "from numl_serving import triton\n"
        "from pathlib import Path\n"
        "from numl_serving.golden import disagreements, read_golden\n"
        "from numl_serving.runtime import Runtime\n"
        f"directory = Path({str(directory)!r})\n"
        "golden = read_golden(directory / 'golden.npz')\n"
        "print(disagreements(golden.outputs, Runtime.load(directory).infer(golden.event)))\n"
        "import scipy.spatial, torch._meta_registrations, torch._dynamo\n"
        "from numl_serving.qhull import Delaunay, QhullError\n"
        "print(scipy.spatial.Delaunay is Delaunay, scipy.spatial.QhullError is QhullError)\n"
        "print(torch.empty(2, 3, device='meta').sum(0).shape == (3,))\n"
        "print(len(scipy.spatial.KDTree([[0.0], [1.0]]).data))\n"
    )
    assert said == ["[]", "True", "True", "True", "2"]


def test_what_was_imported_is_not_looked_through_again_and_garbage_is_still_found() -> None:
    said = python(
        "import gc\n"
        "from numl_serving import triton\n"
        "print(gc.isenabled())\n"
        "triton.keep_imported()\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 100_000, len(gc.get_objects()) < 1000)\n"
    )
    assert said == ["False", "True", "True", "True"]


def test_where_scipy_was_imported_before_its_own_triangulation_is_used() -> None:
    from numl_serving.qhull import Delaunay

    assert Delaunay is spatial.Delaunay
    assert len(Delaunay(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])).simplices) == 1
