"""Confusion matrices as a picture: by true class above, by class given below."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deploy.events.scores import Head
from deploy.host.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK = "#222222"
_CELL, _MARGIN, _DPI = 0.62, 1.5, 90  # in inches, but for the last
_DARK = 0.55  # from here on numbers are white


def write_matrices(heads: Mapping[str, Head], title: str, path: Path) -> None:
    """Draw the heads' matrices side by side as a PNG, which appears whole or not at all."""
    picture = io.BytesIO()
    _draw(heads, title).savefig(picture, format="png", dpi=_DPI)
    write_atomically(path, picture.getvalue())


def _draw(heads: Mapping[str, Head], title: str) -> Figure:
    # Not pyplot: no global state, no screen.
    from matplotlib.figure import Figure

    sizes = [max(3, len(head.classes)) for head in heads.values()]
    size = (sum(_CELL * n + _MARGIN for n in sizes), 2 * (_CELL * max(sizes) + _MARGIN))
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    figure.suptitle(title, fontsize=11, color=_INK, parse_math=False)
    grid = figure.subplots(2, len(heads), squeeze=False, width_ratios=sizes)
    for (name, head), (recall, precision) in zip(heads.items(), grid.T, strict=True):
        _draw_matrix(recall, head, 1, f"{name}: recall")
        _draw_matrix(precision, head, 0, f"{name}: precision")
    return figure


def _draw_matrix(axes: Axes, head: Head, axis: int, title: str) -> None:
    """Draw the shares of a true class's hits or events (axis 1), or of a class given (axis 0)."""
    whole = head.matrix.sum(axis=axis, keepdims=True)
    shares = np.divide(head.matrix, whole, out=np.zeros(head.matrix.shape), where=whole > 0)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), share in np.ndenumerate(shares):
        colour = "white" if share > _DARK else _INK
        text = f"{100 * share:.0f}" if whole.ravel()[row if axis else column] else "-"
        axes.text(column, row, text, ha="center", va="center", fontsize=9, color=colour)
    places = range(len(head.classes))
    axes.set_xticks(places, head.classes, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(places, head.classes, parse_math=False)
    axes.set_xlabel("class given")
    axes.set_ylabel("true class")
    axes.set_title(f"{title}, %", fontsize=10.5, loc="left", color=_INK)
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    axes.set_anchor("N")
