"""A Triton model that serves NuGraph with its own code, as people do now.

The benchmark stages this file as ``model.py`` beside the weights of a model. It answers as
`numl_serving` does and publishes the same metrics, so that both can be compared in one server.

Parameters of config.pbtxt:

- ``numl_bench``: the folder that holds the package `numl_bench`.
- ``nugraph25``: the folder in which nugraph 25.4.0 is unpacked.
- ``threads``: intra-op threads of torch; 0: as many as torch takes by itself.
- ``gradients``: ``on``, as where nobody has told torch otherwise, or ``off``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class TritonPythonModel:
    """One instance of the model, with the interface of Triton's Python backend."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the weights into nugraph's own model, and answer one event."""
        self._pb: Any = importlib.import_module("triton_python_backend_utils")
        config = json.loads(args["model_config"])
        given = {name: value["string_value"] for name, value in config["parameters"].items()}
        # Last: the numl_serving that is served is the environment's own.
        sys.path.append(given["numl_bench"])
        import torch
        from numl_serving.golden import read_event
        from numl_serving.metrics import Metrics

        from numl_bench.reference import load

        torch.set_num_threads(int(given["threads"]) or len(os.sched_getaffinity(0)))
        directory = Path(args["model_repository"]) / args["model_version"]
        self._gradients = given["gradients"] == "on"
        self._reference = load(directory, Path(given["nugraph25"]))
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self._metrics = Metrics(self._pb, labels, self._log)
        event = read_event(directory / "golden.npz")
        self._reference.network(self._reference.preprocess(event.tensors()), gradients=False)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer requests, one after the other."""
        return [self._answer(request) for request in requests]

    def finalize(self) -> None:
        """Publish the last metrics."""
        self._metrics.close()

    def _log(self, error: Exception) -> None:
        self._pb.Logger.log_error(f"metrics are no longer counted: {error}")

    def _answer(self, request: Any) -> Any:
        start = time.perf_counter()
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        graph = self._reference.preprocess(tensors)
        built = time.perf_counter()
        outputs = self._reference.network(graph, gradients=self._gradients)
        answered = time.perf_counter()
        self._metrics.count_batch(
            events=1,
            hits=len(tensors["hit_table_hit_id"]),
            preprocess_s=built - start,
            network_s=answered - built,
        )
        return self._pb.InferenceResponse(
            output_tensors=[
                self._pb.Tensor(name, np.ascontiguousarray(outputs[name]))
                for name in request.requested_output_names()
            ]
        )
