"""Reads lines of text: the requests that Triton hands over together run as one batch."""

import os
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb

NETWORK = "models/ch_PP-OCRv4_rec_infer.onnx"
AT_ONCE = 16


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
        answers = []
        for _, same in groupby(asked, key=lambda crops: crops.shape[-1]):
            together = list(same)
            texts, scores = self._read(np.concatenate(together))
            ends = np.cumsum([len(crops) for crops in together])[:-1]
            answers += zip(np.split(texts, ends), np.split(scores, ends), strict=True)
        return [
            pb.InferenceResponse([pb.Tensor("texts", texts), pb.Tensor("scores", scores)])
            for texts, scores in answers
        ]

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
