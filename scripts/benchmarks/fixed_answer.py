"""A Triton model that gives every event the same answer, that of its reference event.

`benchmark.py releases` stages this file as ``model.py`` in place of a network, to see how fast
Triton alone is with the same tensors.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numl_formats.golden import read_golden


class TritonPythonModel:
    """One instance of the model, with the interface of Triton's Python backend."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the answer."""
        self._pb: Any = importlib.import_module("triton_python_backend_utils")
        directory = Path(args["model_repository"]) / args["model_version"]
        self._outputs = read_golden(directory / "golden.npz").outputs

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Give each request the answer."""
        return [self._answer() for _ in requests]

    def _answer(self) -> Any:
        tensors = [self._pb.Tensor(name, array) for name, array in self._outputs.items()]
        return self._pb.InferenceResponse(output_tensors=tensors)
