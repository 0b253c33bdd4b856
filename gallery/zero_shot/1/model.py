"""Compares a text with labels, by BLS: sentence_bert does the work."""

import numpy as np
import triton_python_backend_utils as pb

MOST_LABELS = 31  # with the text, a batch of sentence_bert
SHARPNESS = 20  # as the network's training scaled cosines


class TritonPythonModel:
    """What Triton starts."""

    def execute(self, requests: list) -> list:
        """Answer each request, or say what is wrong with it."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        text = pb.get_input_tensor_by_name(request, "text").as_numpy()
        labels = pb.get_input_tensor_by_name(request, "labels").as_numpy()
        if not 1 <= len(labels) <= MOST_LABELS:
            return refusal(f"labels has {len(labels)}; 1 to {MOST_LABELS} are compared")
        if not all(label.strip() for label in labels):
            return refusal("labels has one that is empty")
        asked = pb.InferenceRequest(
            model_name="sentence_bert",
            inputs=[pb.Tensor("text", np.concatenate([text, labels])[:, None])],
            requested_output_names=["vector"],
        )
        answer = asked.exec()
        if answer.has_error():
            return pb.InferenceResponse(error=answer.error())
        first, *others = pb.get_output_tensor_by_name(answer, "vector").as_numpy()
        shares = np.exp(SHARPNESS * (np.stack(others) @ first))
        return pb.InferenceResponse([pb.Tensor("scores", shares / shares.sum())])


def refusal(reason: str):
    """Return an answer that refuses a request."""
    return pb.InferenceResponse(error=pb.TritonError(reason, pb.TritonError.INVALID_ARG))
