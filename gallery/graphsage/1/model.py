"""Serves the network: one graph a request, and of its answers those that are asked for."""

from pathlib import Path

import numpy as np
import torch
import triton_python_backend_utils as pb
from network import GraphSAGE, nearest
from safetensors.torch import load_file

MOST_PAPERS, MOST_EDGES = 50_000, 200_000  # an edge takes 6 kB


class TritonPythonModel:
    """What Triton starts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the weights that lie beside this file."""
        self.network = GraphSAGE().eval()
        self.network.load_state_dict(load_file(Path(__file__).with_name("weights.safetensors")))

    def execute(self, requests: list) -> list:
        """Answer each request, or say what is wrong with it."""
        return [self._answer(request) for request in requests]

    @torch.inference_mode()
    def _answer(self, request):
        x = pb.get_input_tensor_by_name(request, "x").as_numpy()
        edges = pb.get_input_tensor_by_name(request, "edges").as_numpy()
        wrong = what_is_wrong(x, edges)
        if wrong is not None:
            error = pb.TritonError(wrong, pb.TritonError.INVALID_ARG)
            return pb.InferenceResponse(error=error)
        # Copies: torch takes no arrays that cannot be written to.
        links = torch.from_numpy(edges.copy())
        vectors = self.network(torch.from_numpy(x.copy()), links)
        answer = [pb.Tensor("vectors", vectors.numpy())]
        if "nearest" in request.requested_output_names():
            answer.append(pb.Tensor("nearest", nearest(vectors, links).numpy()))
        return pb.InferenceResponse(answer)


def what_is_wrong(x: np.ndarray, edges: np.ndarray) -> str | None:
    """Return in one line why a graph cannot be answered, or None."""
    if not 1 <= len(x) <= MOST_PAPERS:
        return f"x has {len(x)} papers; 1 to {MOST_PAPERS} are answered"
    if edges.shape[1] > MOST_EDGES:
        return f"edges has {edges.shape[1]}; at most {MOST_EDGES} are answered"
    if not np.isfinite(x).all() or (x < 0).any():
        return "x has values that are negative or not finite"
    if edges.size and not 0 <= edges.min() <= edges.max() < len(x):
        outside = edges[(edges < 0) | (edges >= len(x))][0]
        return f"edges names paper {outside}; x has {len(x)}, counted from 0"
    return None
