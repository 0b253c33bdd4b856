"""What nugraph's feature extension adds to an event, measured in the execution environment."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np

from deploy.environment.environment import Environment
from scripts.benchmarks.cells import Floats
from scripts.benchmarks.child import Child
from scripts.benchmarks.document import Document
from scripts.benchmarks.tables import Table, ms


def measure_extension(
    environment: Environment, models: Mapping[str, Path], events: Path, seconds: float, core: int
) -> Document:
    """Time each model with the extension and without, both in turn, on sets of events.

    Args:
        environment: Where it runs.
        models: Folders with ``model.json`` and weights.
        events: A file that ``numl_bench`` has written.
        seconds: For a model and a set.
        core: The core that it is pinned to.
    """
    found: Document = {"format": 1, "models": {}}
    for model, folder in models.items():
        arguments = [str(events), str(folder), str(seconds)]
        with closing(
            Child(
                environment,
                "numl_bench.extension",
                arguments,
                scratch=events.parent,
                cores={core},
            )
        ) as child:
            times = {name: np.array(rounds) for name, rounds in child.read()["times"].items()}
        found["models"][model] = {name: _figures(*rounds.T) for name, rounds in times.items()}
    return found


def _figures(without: Floats, with_it: Floats) -> dict[str, float]:
    low, median, high = np.quantile(with_it / without - 1, (0.1, 0.5, 0.9))
    return {
        "without": float(np.median(without)),
        "with": float(np.median(with_it)),
        "adds": float(median),
        "low": float(low),
        "high": float(high),
    }


def extension_table(run: Document) -> Table:
    """Return the figures as a table."""
    rows = [
        (
            model,
            events,
            ms(each["without"]),
            ms(each["with"]),
            f"{each['adds']:+.1%} ({each['low']:+.1%} to {each['high']:+.1%})",
        )
        for model, sets in run["models"].items()
        for events, each in sets.items()
    ]
    columns = ("model", "events", "without, ms", "with, ms", "adds (middle 80% of rounds)")
    return Table("feature extension: processor time of an event", columns, rows)
