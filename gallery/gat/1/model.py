"""Serves the network: one graph a request."""

from pathlib import Path

import numpy as np
import torch
import triton_python_backend_utils as pb
from network import GAT
from safetensors.torch import load_file

MOST_PAPERS, MOST_EDGES = 50_000, 1_000_000  # an edge takes 0.7 kB


class TritonPythonModel:
    """What Triton starts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the weights that lie beside this file."""
        self.network = GAT().eval()
        self.network.load_state_dict(load_file(Path(__file__).with_name("weights.safetensors")))

    def execute(self, requests: list) -> list:
        """Answer each request, or say what is wrong with it."""
        return [self._answer(request) for request in requests]

    @torch.inference_mode()
    def _answer(self, request):
        x = pb.get_input_tensor_by_name(request, "x__0").as_numpy()
        edges = pb.get_input_tensor_by_name(request, "edgeindex__1").as_numpy()
        wrong = what_is_wrong(x, edges)
        if wrong is not None:
            error = pb.TritonError(wrong, pb.TritonError.INVALID_ARG)
            return pb.InferenceResponse(error=error)
        # Copies: torch takes no arrays that cannot be written to.
        logits = self.network(torch.from_numpy(x.copy()), torch.from_numpy(edges.copy()))
        return pb.InferenceResponse([pb.Tensor("logits__0", logits.numpy())])


def what_is_wrong(x: np.ndarray, edges: np.ndarray) -> str | None:
    """Return in one line why a graph cannot be answered, or None."""
    if len(x) > MOST_PAPERS:
        return f"x__0 has {len(x)} papers; at most {MOST_PAPERS} are answered"
    if edges.shape[1] > MOST_EDGES:
        return f"edgeindex__1 has {edges.shape[1]} edges; at most {MOST_EDGES} are answered"
    if not np.isfinite(x).all() or (x < 0).any():
        return "x__0 has values that are negative or not finite"
    if edges.size and not 0 <= edges.min() <= edges.max() < len(x):
        outside = edges[(edges < 0) | (edges >= len(x))][0]
        return f"edgeindex__1 names paper {outside}; x__0 has {len(x)}, counted from 0"
    return None
