"""Serves the network: the requests that Triton hands over together run as one batch."""

from pathlib import Path

import numpy as np
import torch
import triton_python_backend_utils as pb
from network import Classifier
from safetensors.torch import load_file


class TritonPythonModel:
    """What Triton starts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the weights that lie beside this file."""
        self.network = Classifier().eval()
        self.network.load_state_dict(load_file(Path(__file__).with_name("weights.safetensors")))

    def execute(self, requests: list) -> list:
        """Answer each request, or say what is wrong with it."""
        asked = [pb.get_input_tensor_by_name(r, "image").as_numpy() for r in requests]
        good = [images for images in asked if is_charge(images)]
        scores = iter(self._scores(np.concatenate(good)) if good else ())
        return [self._answer(images, scores) for images in asked]

    def _answer(self, images, scores):
        if not is_charge(images):
            reason = "image has charges that are negative or not finite"
            error = pb.TritonError(reason, pb.TritonError.INVALID_ARG)
            return pb.InferenceResponse(error=error)
        own = np.stack([next(scores) for _ in images])
        return pb.InferenceResponse([pb.Tensor("scores", own)])

    @torch.inference_mode()
    def _scores(self, images: np.ndarray) -> np.ndarray:
        return self.network(torch.from_numpy(images)).softmax(dim=1).numpy()


def is_charge(images: np.ndarray) -> bool:
    """Return whether every pixel of some images is a charge."""
    return bool((np.isfinite(images) & (images >= 0)).all())
