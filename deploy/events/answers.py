"""A model's answer for one event, mapped back to the event's hits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.events.files import EventTensors
from deploy.host.errors import RequestError
from numl_formats.contract import EVENT_CLASS, FILTER, OF_THE_EVENT, PLANE, SEMANTIC

FILTER_THRESHOLD = 0.5
_SUM_TOLERANCE = 1e-3
_DIMENSIONS = {SEMANTIC: (2,), FILTER: (1,)}


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """A model's answer for one event; rows are the event's hits, in its order.

    Attributes:
        hits: By output name without the plane, float32 or int32 ``[hits]`` or ``[hits, width]``,
            as served: ``x_semantic`` (probabilities or logits), ``x_filter`` (the probability
            that the hit is signal), ...
        whole: By output name, float32 ``[width]`` for the whole event: ``e_evt``, ``v_evt``, ...
    """

    event: EventTensors
    planes: tuple[str, ...]
    hits: Mapping[str, NDArray[Any]]
    whole: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """The number of semantic classes; 0 for a model without any."""
        return int(self.hits[SEMANTIC].shape[1]) if SEMANTIC in self.hits else 0

    @property
    def label(self) -> NDArray[np.int32]:
        """The class of each hit's largest score, int32 ``[hits]``; 0 without classes."""
        if not self.classes:
            return np.zeros(self.event.hits, dtype=np.int32)
        return np.asarray(self.hits[SEMANTIC].argmax(axis=1), dtype=np.int32)

    @property
    def score(self) -> NDArray[np.float32]:
        """The probability of each hit's label, float32 ``[hits]``; 1 without classes."""
        if not self.classes:
            return np.ones(self.event.hits, dtype=np.float32)
        return np.asarray(probabilities(self.hits[SEMANTIC]).max(axis=1), dtype=np.float32)

    @property
    def noise(self) -> NDArray[np.bool_]:
        """Which hits the filter labels as noise, bool ``[hits]``; none without a filter."""
        if FILTER not in self.hits:
            return np.zeros(self.event.hits, dtype=np.bool_)
        return np.asarray(self.hits[FILTER] < FILTER_THRESHOLD)

    @property
    def event_scores(self) -> NDArray[np.float32] | None:
        """The scores of the event classes, float32 ``[event classes]``, or None."""
        return self.whole.get(EVENT_CLASS)


def probabilities(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return class probabilities, float32 ``[..., classes]``, from probabilities or logits.

    NuGraph3 answers the former, which sum to one, NuGraph2 the latter.
    """
    if _are_probabilities(scores):
        return scores
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True), dtype=np.float32)


def _are_probabilities(scores: NDArray[np.float32]) -> bool:
    if scores.size == 0:
        return True
    if scores.min() < 0 or scores.max() > 1:
        return False
    return bool(np.abs(np.einsum("...i->...", scores) - 1).max() <= _SUM_TOLERANCE)


def best(events: Sequence[NDArray[np.float32]]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return `Labels.label` and `Labels.score`, ``[hits]``, given the semantic scores of events.

    For many events at once this takes little longer than for one.
    """
    scores = np.concatenate(events)
    label = scores.argmax(axis=1)
    if not _are_probabilities(scores):
        scores = np.concatenate([probabilities(event) for event in events])
    score = scores[np.arange(len(label)), label]
    return label.astype(np.int32), score.astype(np.float32, copy=False)


def assemble(
    event: EventTensors, outputs: Mapping[str, NDArray[Any]], planes: Sequence[str]
) -> Labels:
    """Map a model's outputs back to the event's hits.

    A plane's hits have outputs that end in its name (``x_semantic_u``: ``[hits in plane,
    classes]``), the event has those that end in ``evt`` (``e_evt``: ``[1, event classes]``).
    """
    names = dict.fromkeys(
        name.removesuffix(f"_{plane}")
        for name in outputs
        for plane in planes
        if name.endswith(f"_{plane}")
    )
    if not names:
        raise RequestError("the server returned nothing for the event's hits")
    rows = [np.flatnonzero(event.tensors[PLANE] == index) for index in range(len(planes))]
    hits = {name: _of_hits(event, outputs, name, planes, rows) for name in names}
    whole = {
        name: _finite(name, values).reshape(-1)
        for name, values in outputs.items()
        if name.endswith(OF_THE_EVENT)
    }
    return Labels(event, tuple(planes), hits, whole)


def _of_hits(
    event: EventTensors,
    outputs: Mapping[str, NDArray[Any]],
    name: str,
    planes: Sequence[str],
    rows: Sequence[NDArray[np.intp]],
) -> NDArray[Any]:
    """Return an output for all planes, one row per hit in the event's order."""
    parts: list[NDArray[Any]] = []
    for plane, rows_of_plane in zip(planes, rows, strict=True):
        output = f"{name}_{plane}"
        if output not in outputs:
            raise RequestError(f"the server returned no {output}")
        values = _finite(output, outputs[output])
        hits = len(rows_of_plane)
        if values.ndim not in _DIMENSIONS.get(name, (1, 2)) or len(values) != hits:
            raise RequestError(
                f"the server returned {output} with shape {list(values.shape)} for {hits} hits"
            )
        parts.append(values)
        if values.shape[1:] != parts[0].shape[1:]:
            raise RequestError(
                f"the server returned {name} with {_width(values)} columns for plane {plane}, "
                f"{_width(parts[0])} for plane {planes[0]}"
            )
    if _width(parts[0]) == 0:
        raise RequestError(f"the server returned {name} without columns")
    whole = np.zeros((event.hits, *parts[0].shape[1:]), dtype=parts[0].dtype)
    whole[np.concatenate(rows)] = np.concatenate(parts)
    return whole


def _width(values: NDArray[Any]) -> int:
    return int(values.shape[1]) if values.ndim == 2 else 1


def _finite(name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind in "iu":
        return np.asarray(values, dtype=np.int32)
    checked = np.asarray(values, dtype=np.float32)
    if not np.isfinite(checked).all():
        raise RequestError(f"the server returned NaN or infinity in {name}")
    return checked
