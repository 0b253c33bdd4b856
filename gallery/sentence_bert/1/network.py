"""The network all-MiniLM-L6-v2, a BERT (arXiv:1810.04805) of six layers, in numpy."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

LAYERS, HEADS = 6, 12


class MiniLM:
    """Turns tokens into one vector of length 1 for each sentence."""

    def __init__(self, folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        self._weights = {name.removeprefix("bert."): array for name, array in weights.items()}

    def __call__(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return [sentences, 384] for token numbers and a mask, both [sentences, tokens]."""
        w = self._weights
        x = w["embeddings.word_embeddings.weight"][tokens]
        x = x + w["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        x = x + w["embeddings.token_type_embeddings.weight"][0]
        x = self._normalised(x, "embeddings.LayerNorm")
        hidden = np.where(mask[:, None, None, :] > 0, np.float32(0), np.float32(-1e9))
        for number in range(LAYERS):
            name = f"encoder.layer.{number}"
            x = self._normalised(
                x + self._attention(x, hidden, name), f"{name}.attention.output.LayerNorm"
            )
            inner = gelu(self._linear(x, f"{name}.intermediate.dense"))
            x = self._normalised(
                x + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm"
            )
        share = mask / mask.sum(axis=1, keepdims=True)
        vectors = np.einsum("stc,st->sc", x, share.astype(np.float32))
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def _attention(self, x: np.ndarray, hidden: np.ndarray, name: str) -> np.ndarray:
        sentences, tokens, width = x.shape
        query, key, value = (
            self._linear(x, f"{name}.attention.self.{part}")
            .reshape(sentences, tokens, HEADS, width // HEADS)
            .transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32(np.sqrt(width // HEADS)) + hidden
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = scores / scores.sum(axis=-1, keepdims=True) @ value
        joined = mixed.transpose(0, 2, 1, 3).reshape(sentences, tokens, width)
        return self._linear(joined, f"{name}.attention.output.dense")

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normalised(self, x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(1e-12))
        return x * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    """Return x times the normal distribution's share below x, by Abramowitz and Stegun 7.1.26."""
    z = np.abs(x) / np.float32(np.sqrt(2))
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    erf = np.sign(x) * (1 - series.astype(np.float32) * np.exp(-z * z))
    return x * (1 + erf) / 2
