"""Runs a network that lies beside this file, in ONNX."""

import os
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb


class TritonPythonModel:
    """What Triton starts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network; it is in the model's folder, not where this code may be linked from."""
        folder = Path(args["model_repository"], args["model_version"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        self.session = onnxruntime.InferenceSession(folder / "network.onnx", options)

    def execute(self, requests: list) -> list:
        """Answer each request, or say what is wrong with it."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        volume = pb.get_input_tensor_by_name(request, "volume").as_numpy()
        if not np.isfinite(volume).all():
            reason = "volume has values that are not finite"
            error = pb.TritonError(reason, pb.TritonError.INVALID_ARG)
            return pb.InferenceResponse(error=error)
        (found,) = self.session.run(None, {"volume": volume[None, None]})
        return pb.InferenceResponse([pb.Tensor("probability", found[0, 0])])
