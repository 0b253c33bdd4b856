"""Goodput against offered load, as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_plot(documents: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Write a PNG of one curve for each document (see `summary.document`), by its label.

    Axes are in multiples of the capacity of the first one.
    """
    from matplotlib.figure import Figure

    capacity = next(iter(documents.values()))["capacity"]
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(1.0, color="0.7", linewidth=1, label="capacity")
    for label, found in documents.items():
        # The first tenant's rate is the one that changes.
        points = [each["tenants"][0] for each in found["rounds"]]
        offered = [point["offered"] / capacity for point in points]
        axes.plot(offered, [point["goodput"] / capacity for point in points], "o-", label=label)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("offered load")
    axes.set_ylabel("right answers in time")
    axes.legend(loc="lower left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
