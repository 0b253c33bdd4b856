"""What a model answered for one event, put back on the event's hits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.client.events import EventTensors
from deploy.errors import KitError

PLANES = ("u", "v", "y")
FILTER_THRESHOLD = 0.5


class AnswerError(KitError):
    """A server's answer does not fit the event it was asked about."""


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Labels and scores of one event; rows are the event's hits, in its order.

    Attributes:
        event: What was asked.
        semantic: float32 ``[hits, classes]``, as the server gave it (probabilities
            or logits, as the model has it).
        filter: float32 ``[hits]``, the probability that the hit is no noise.
        event_scores: float32 ``[event classes]`` as the server gave it, or None.
        vertex: float32 ``[3]``, or None.
    """

    event: EventTensors
    semantic: NDArray[np.float32]
    filter: NDArray[np.float32]
    event_scores: NDArray[np.float32] | None
    vertex: NDArray[np.float32] | None

    @property
    def label(self) -> NDArray[np.int32]:
        """The class of each hit's largest score, int32 ``[hits]``."""
        return np.asarray(self.semantic.argmax(axis=1), dtype=np.int32)

    @property
    def score(self) -> NDArray[np.float32]:
        """The probability of each hit's label, float32 ``[hits]``."""
        return np.asarray(probabilities(self.semantic).max(axis=1), dtype=np.float32)

    @property
    def noise(self) -> NDArray[np.bool_]:
        """Which hits the filter takes for noise, bool ``[hits]``."""
        return self.filter < FILTER_THRESHOLD


def probabilities(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return class probabilities, from probabilities or from logits.

    NuGraph3 answers probabilities, NuGraph2 logits; rows that sum to one and lie
    in [0, 1] are taken for probabilities.

    Args:
        scores: float32 ``[..., classes]``.
    """
    if scores.size == 0:
        return scores
    sums = scores.sum(axis=-1)
    if (scores >= 0).all() and (scores <= 1).all() and np.allclose(sums, 1, atol=1e-3):
        return scores
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True), dtype=np.float32)


def assemble(event: EventTensors, outputs: Mapping[str, NDArray[Any]]) -> Labels:
    """Put a model's outputs back on the event's hits.

    Args:
        event: What was asked.
        outputs: ``x_semantic_{u,v,y}`` ``[hits in plane, classes]``,
            ``x_filter_{u,v,y}`` ``[hits in plane]``, and where the model has them
            ``e_evt`` ``[1, event classes]`` and ``v_evt`` ``[1, 3]``.

    Raises:
        AnswerError: An output is missing, has another length than the plane, or is
            not finite.
    """
    plane = event.tensors["hit_table_local_plane"]
    semantic: NDArray[np.float32] | None = None
    filtered = np.zeros(event.hits, dtype=np.float32)
    for i, name in enumerate(PLANES):
        rows = plane == i
        scores = _output(outputs, f"x_semantic_{name}", 2, int(rows.sum()))
        if semantic is None:
            semantic = np.zeros((event.hits, scores.shape[1]), dtype=np.float32)
        if scores.shape[1] != semantic.shape[1]:
            raise AnswerError(
                f"the server answered {scores.shape[1]} classes for plane {name}, "
                f"{semantic.shape[1]} for plane u"
            )
        semantic[rows] = scores
        filtered[rows] = _output(outputs, f"x_filter_{name}", 1, int(rows.sum()))
    if semantic is None or semantic.shape[1] == 0:
        raise AnswerError("the server answered no semantic classes")
    event_scores = _output(outputs, "e_evt", None, None) if "e_evt" in outputs else None
    vertex = _output(outputs, "v_evt", None, None) if "v_evt" in outputs else None
    return Labels(event, semantic, filtered, event_scores, vertex)


def _output(
    outputs: Mapping[str, NDArray[Any]], name: str, ndim: int | None, rows: int | None
) -> NDArray[np.float32]:
    """Return an output, checked; a vector where ``ndim`` is None."""
    if name not in outputs:
        raise AnswerError(f"the server answered no {name}")
    values = np.asarray(outputs[name], dtype=np.float32)
    if ndim is None:
        values = values.reshape(-1)
    elif values.ndim != ndim or values.shape[0] != rows:
        raise AnswerError(
            f"the server answered {name} of shape {list(values.shape)} for {rows} hits"
        )
    if not np.isfinite(values).all():
        raise AnswerError(f"the server answered NaN or infinity in {name}")
    return values
