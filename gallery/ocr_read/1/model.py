"""Reads lines of text: the requests that Triton hands over together run as one batch."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb

NETWORK = "models/ch_PP-OCRv4_rec_infer.onnx"
AT_ONCE = 16
MOST_LINES, WIDEST = 200, 1600  # as ocr_crop makes


class TritonPythonModel:
    """What Triton starts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network that the environment holds."""
        package = Path(find_spec("rapidocr_onnxruntime").origin).parent  # found, not imported
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        self.session = onnxruntime.InferenceSession(package / NETWORK, options)
        known = self.session.get_modelmeta().custom_metadata_map["character"].splitlines()
        self.characters = np.array(["", *known, " "])  # the first: none, in CTC

    def execute(self, requests: list) -> list:
        """Answer each request with one text and score for each of its lines."""
        asked = [pb.get_input_tensor_by_name(r, "crops").as_numpy() for r in requests]
        wrong = [what_is_wrong(crops) for crops in asked]
        read = self._answers([a for a, reason in zip(asked, wrong, strict=True) if reason is None])
        return [next(read) if reason is None else refusal(reason) for reason in wrong]

    def _answers(self, asked: list[np.ndarray]) -> Iterator:
        for _, same in groupby(asked, key=lambda crops: crops.shape[-1]):
            together = list(same)
            texts, scores = self._read(np.concatenate(together))
            ends = np.cumsum([len(crops) for crops in together])[:-1]
            for own in zip(np.split(texts, ends), np.split(scores, ends), strict=True):
                tensors = zip(("texts", "scores"), own, strict=True)
                yield pb.InferenceResponse([pb.Tensor(*named) for named in tensors])

    def _read(self, crops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        texts, scores = [], []
        for start in range(0, len(crops), AT_ONCE):
            batch = {"x": crops[start : start + AT_ONCE]}
            for steps in self.session.run(None, batch)[0]:
                best = steps.argmax(axis=1)
                kept = (best != 0) & (best != np.concatenate([[0], best[:-1]]))
                texts.append("".join(self.characters[best[kept]]).encode())
                scores.append(steps.max(axis=1)[kept].mean() if kept.any() else 0)
        return np.array(texts, np.object_), np.array(scores, np.float32)


def what_is_wrong(crops: np.ndarray) -> str | None:
    """Return in one line why lines cannot be read, or None."""
    if len(crops) > MOST_LINES or not 1 <= crops.shape[-1] <= WIDEST:
        shape = " x ".join(map(str, crops.shape))
        return f"crops is {shape}; up to {MOST_LINES} lines, 1 to {WIDEST} pixels wide, are read"
    if not np.isfinite(crops).all():
        return "crops has values that are not finite"
    return None


def refusal(reason: str):
    """Return an answer that refuses a request."""
    return pb.InferenceResponse(error=pb.TritonError(reason, pb.TritonError.INVALID_ARG))
