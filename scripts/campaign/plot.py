"""The course of simulated campaigns, as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LINES = ("-", "--", "-.", ":")


def write_plot(runs: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Write a PNG: what a failed campaign answered and what mends it, and accidents.

    Args:
        runs: What ``scenarios.run_all`` returns.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1))
    failure, accidents = runs["failure"], runs["accidents"]
    for name in ("as it was", "ten tries", "balanced by load", "balanced by load, a third server"):
        run = failure[name]
        left.plot([at / 3600 for at in run["at_s"]], run["per_s"], label=name)
    left.set_xlabel("hours")
    left.set_ylabel("events answered per second")
    left.set_title("10,000 jobs", fontsize="medium")
    for (name, run), line in zip(accidents.items(), _LINES, strict=True):
        minutes = [at / 60 for at in run["at_s"]]
        middle.plot(minutes, run["per_s"], line, label=name)
        right.step(minutes, run["farm"], line, where="mid", label=name)
    middle.set_title("accidents", fontsize="medium")
    right.set_ylabel("servers")
    for axes in (middle, right):
        axes.set_xlabel("minutes")
    for axes in (left, middle, right):
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (left, middle):
        axes.legend(loc="lower right", frameon=False, fontsize="x-small")
    figure.savefig(path, dpi=150)
