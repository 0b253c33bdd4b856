"""How well a model does: counts of answers against the truth, and the usual figures of them.

Definitions are scikit-learn's. `Scores.metrics` are named as nugraph's main branch logs them; it
averages over batches, these are over all hits and events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.events.answers import Labels
from deploy.events.tables import EventFileError
from deploy.events.truth import Truth

HEADS = ("semantic", "filter", "event")
FILTER_CLASSES = ("noise", "signal")
_INSTANCE, _VERTEX = "x_i", "v_evt"

Matrix = NDArray[np.int64]


def confusion(truth: NDArray[Any], guess: NDArray[Any], classes: int) -> Matrix:
    """Return how often what was taken for what, int64 ``[true class, class given]``."""
    if truth.size and not 0 <= truth.min() <= truth.max() < classes:
        wrong = truth[(truth < 0) | (truth >= classes)][0]
        raise EventFileError(f"its truth has class {wrong}, where there are {classes}")
    cells = np.bincount(truth * classes + guess, minlength=classes * classes)
    return cells.reshape(classes, classes)


def adjusted_rand(truth: NDArray[Any], guess: NDArray[Any]) -> float:
    """Return the adjusted Rand index of two labellings of the same hits; 1: the same groups."""
    _, one = np.unique(truth, return_inverse=True)
    _, two = np.unique(guess, return_inverse=True)
    table = np.zeros((one.max(initial=-1) + 1, two.max(initial=-1) + 1))
    np.add.at(table, (one, two), 1)

    def pairs(counts: NDArray[Any]) -> float:
        return float((counts * (counts - 1)).sum() / 2)

    both, of_truth, of_guess = pairs(table), pairs(table.sum(axis=1)), pairs(table.sum(axis=0))
    every = len(truth) * (len(truth) - 1) / 2
    expected = of_truth * of_guess / every if every else 0.0
    largest = (of_truth + of_guess) / 2
    return 1.0 if largest == expected else (both - expected) / (largest - expected)


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """The classes of a head, and its confusion matrix."""

    classes: tuple[str, ...]
    matrix: Matrix

    @property
    def accuracy(self) -> float:
        return _ratio(np.trace(self.matrix), self.matrix.sum()) or 0.0

    @property
    def recall(self) -> dict[str, float | None]:
        """The share of each true class that was found; None for a class that never occurs."""
        return self._shares(axis=1)

    @property
    def precision(self) -> dict[str, float | None]:
        """The share of each class given that is right; None for a class that was never given."""
        return self._shares(axis=0)

    def _shares(self, axis: int) -> dict[str, float | None]:
        ratios = map(_ratio, np.diag(self.matrix), self.matrix.sum(axis=axis))
        return dict(zip(self.classes, ratios, strict=True))

    def document(self) -> dict[str, Any]:
        true = self.matrix.sum(axis=1)
        return {
            "classes": list(self.classes),
            "confusion": self.matrix.tolist(),
            "true": dict(zip(self.classes, true.tolist(), strict=True)),
            "recall": self.recall,
            "precision": self.precision,
            "accuracy": self.accuracy,
            "largest_class": _ratio(true.max(), true.sum()),
        }


@dataclass(slots=True)
class Scores:
    """What was counted of answered events.

    Attributes:
        classes: Names of the classes of the heads ``semantic`` and ``event``; none if unknown.
    """

    classes: Mapping[str, Sequence[str]]
    events: int = 0
    hits: int = 0
    _counts: dict[str, Matrix] = field(default_factory=dict)
    _vertices: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = field(default_factory=list)
    _rand: list[float] = field(default_factory=list)

    def add(self, labels: Labels, truth: Truth) -> None:
        """Count an event; EventFileError if its truth has classes that the model has not."""
        found: dict[str, Matrix] = {}
        self._check("semantic", labels.classes)
        self._check("event", 0 if labels.event_scores is None else len(labels.event_scores))
        semantic = truth.semantic
        if semantic is not None and labels.classes:
            signal = semantic >= 0
            found["semantic"] = confusion(semantic[signal], labels.label[signal], labels.classes)
        if truth.signal is not None and "x_filter" in labels.hits:
            kept = (~labels.noise).astype(np.int64)
            found["filter"] = confusion(truth.signal.astype(np.int64), kept, 2)
        if truth.event is not None and labels.event_scores is not None:
            scores = labels.event_scores
            true, given = np.array([truth.event]), np.array([scores.argmax()])
            found["event"] = confusion(true, given, len(scores))
        for name, matrix in found.items():
            self._counts[name] = matrix + self._counts.get(name, 0)
        # An event without an interaction has a vertex of NaN, which would be the figures' too.
        vertex = truth.vertex if _VERTEX in labels.whole else None
        if vertex is not None and np.isfinite(vertex).all():
            self._vertices.append((vertex, labels.whole[_VERTEX].astype(np.float64)))
        if truth.instance is not None and _INSTANCE in labels.hits:
            kept_in = slice(None) if semantic is None else semantic >= 0  # as nugraph does
            guess = labels.hits[_INSTANCE][kept_in]
            if len(guess) > 1:  # fewer are one group whatever a model answers
                self._rand.append(adjusted_rand(truth.instance[kept_in], guess))
        self.events += 1
        self.hits += labels.event.hits

    def _check(self, kind: str, answered: int) -> None:
        named = len(self.classes[kind])
        if answered and named and answered != named:
            raise EventFileError(
                f"the model answers {answered} {kind} classes, the file has {named}"
            )

    @property
    def heads(self) -> dict[str, Head]:
        """The heads of classes that were compared."""
        found = {}
        for name in (name for name in HEADS if name in self._counts):
            matrix = self._counts[name]
            named = FILTER_CLASSES if name == "filter" else self.classes[name]
            numbered = (f"class_{index}" for index in range(len(matrix)))
            found[name] = Head(tuple(named or numbered), matrix)
        return found

    def document(self) -> dict[str, Any]:
        """Return all figures; None for what the file or the model does not have."""
        heads = self.heads
        return {
            "events": self.events,
            "hits": self.hits,
            **{name: heads[name].document() if name in heads else None for name in HEADS},
            "vertex": self._vertex(),
            "instance": {"adjusted_rand": float(np.mean(self._rand)), "events": len(self._rand)}
            if self._rand
            else None,
            "metrics": self.metrics(),
        }

    def metrics(self) -> dict[str, float]:
        """Return the figures that nugraph logs in training, by its names."""
        found: dict[str, float] = {}
        for name, head in self.heads.items():
            if name == "filter":
                recall, precision = head.recall["signal"] or 0.0, head.precision["signal"] or 0.0
            else:  # torchmetrics' default adds up all classes
                recall = precision = head.accuracy
            both = recall + precision
            found |= {
                f"{name}/recall": recall,
                f"{name}/precision": precision,
                f"{name}/f1": 2 * recall * precision / both if both else 0.0,
            }
        if (vertex := self._vertex()) is not None:
            found |= {f"vertex/{axis}-resolution": vertex["mean_abs"][axis] for axis in "xyz"}
            found["vertex/resolution"] = float(np.linalg.norm(list(vertex["mean_abs"].values())))
        if self._rand:
            found["instance/adjusted-rand"] = float(np.mean(self._rand))
        return found

    def _vertex(self) -> dict[str, Any] | None:
        if not self._vertices:
            return None
        true, given = (np.array(side) for side in zip(*self._vertices, strict=True))
        distance = np.linalg.norm(given - true, axis=1)
        of_the_mean = np.linalg.norm(true.mean(axis=0) - true, axis=1)
        return {
            "events": len(true),
            "median": float(np.median(distance)),
            "quantile_68": float(np.quantile(distance, 0.68)),
            "median_of_the_mean_vertex": float(np.median(of_the_mean)),
            "mean_abs": dict(zip("xyz", np.abs(given - true).mean(axis=0).tolist(), strict=True)),
        }


def _ratio(part: Any, whole: Any) -> float | None:
    return float(part) / float(whole) if whole else None
