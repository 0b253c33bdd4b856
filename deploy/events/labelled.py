"""What a `Client` answers for an event: a table of its hits, its class, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deploy.client.transport import ServedModel
from deploy.events.answers import Labels, probabilities
from deploy.events.display import draw
from deploy.events.grouping import EventId
from numl_formats.contract import FILTER, HIT_ID, PLANE, SEMANTIC

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = ("hit_id", "plane", "label", "class", "score", "signal", "noise")


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """An event with its labels, one row per hit in the event's order.

    Attributes:
        labels: The model's outputs for the event's hits.
        model: What labelled it.
        latency_s: Seconds that the successful request took.
    """

    labels: Labels
    model: ServedModel
    latency_s: float

    @property
    def event_id(self) -> EventId:
        """Run, subrun and event."""
        return self.labels.event.event_id

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the table's columns: ids, label (int32 and its name), scores, ``[hits]`` each.

        ``signal`` is the filter's probability that the hit is no noise; each class has a column
        with its probability, ``x_NAME`` if another column has its name.
        """
        labels, tensors = self.labels, self.labels.event.tensors
        found: dict[str, NDArray[Any]] = {"hit_id": tensors[HIT_ID], "plane": tensors[PLANE]}
        if labels.classes:
            names = self.model.classes("semantic", labels.classes)
            chances = probabilities(labels.hits[SEMANTIC])
            found |= {"label": labels.label, "class": np.array(names)[labels.label]}
            found |= {"score": labels.score}
            found |= {name: chances[:, i] for i, name in enumerate(_free_names(names))}
        if FILTER in labels.hits:
            found |= {"signal": labels.hits[FILTER], "noise": labels.noise}
        return found

    def table(self) -> Any:
        """Return the columns as a pandas DataFrame; without pandas, as a numpy structured array."""
        columns = self.columns()
        try:
            import pandas
        except ImportError:
            kinds = [(name, values.dtype) for name, values in columns.items()]
            table = np.empty(self.labels.event.hits, dtype=kinds)
            for name, values in columns.items():
                table[name] = values
            return table
        return pandas.DataFrame(columns)

    def awkward(self) -> Any:
        """Return the columns as an awkward array of records; needs the package awkward."""
        import awkward  # type: ignore[import-not-found, unused-ignore]

        return awkward.zip(self.columns())

    def event_scores(self) -> dict[str, float]:
        """Return the probability of each event class; empty for a model without an event head."""
        scores = self.labels.event_scores
        if scores is None:
            return {}
        names = self.model.classes("event", len(scores))
        return dict(zip(names, map(float, probabilities(scores)), strict=True))

    def display(self) -> Figure:
        """Draw the event: wire against time in each plane, coloured by label."""
        return draw(self.labels, self.model)


def _free_names(classes: Sequence[str]) -> list[str]:
    """Return a name for each class's column that no other column has, with a filter or without."""
    names = list(_COLUMNS)
    for name in classes:
        while name in names:
            name = f"x_{name}"
        names.append(name)
    return names[len(_COLUMNS) :]
