"""Finds the nearest texts of the catalogue beside this file, by vectors of sentence_bert's."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb

MODEL = "sentence_bert"
COUNT = 5


class TritonPythonModel:
    """What Triton starts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the catalogue, which catalogue.py wrote."""
        with np.load(Path(__file__).with_name("catalogue.npz")) as catalogue:
            self.texts, self.vectors = catalogue["texts"].astype(np.object_), catalogue["vectors"]

    def execute(self, requests: list) -> list:
        """Answer each request, or say what is wrong with it."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        text = pb.get_input_tensor_by_name(request, "text").as_numpy()
        asked = pb.InferenceRequest(
            model_name=MODEL,
            inputs=[pb.Tensor("text", text[None])],
            requested_output_names=["vector"],
        )
        answer = asked.exec()
        if answer.has_error():
            return pb.InferenceResponse(error=answer.error())
        likeness = self.vectors @ pb.get_output_tensor_by_name(answer, "vector").as_numpy()[0]
        likeness[self.texts == text[0]] = -1  # a text is not recommended for itself
        best = np.argsort(-likeness)[:COUNT]
        return pb.InferenceResponse(
            [pb.Tensor("texts", self.texts[best]), pb.Tensor("likeness", likeness[best])]
        )
