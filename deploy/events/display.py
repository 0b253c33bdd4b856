"""Event displays: a PNG per event, wire against time in each plane, coloured by label."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from deploy.client.transport import ServedModel
from deploy.events.answers import Labels, probabilities
from deploy.host.errors import KitError
from deploy.host.files import write_atomically
from numl_formats.contract import PLANE, TIME, WIRE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours (jfly.uni-koeln.de/color), which can be told apart with any common
# colour vision deficiency; their yellow, too pale for small markers, is a brown here. A class
# has the same colour in every model.
_BLUE, _VERMILION, _GREEN = "#0072b2", "#d55e00", "#009e73"
_PURPLE, _ORANGE, _SKY, _BROWN = "#cc79a7", "#e69f00", "#56b4e9", "#6b4c2a"
_COLOURS: Mapping[str, str] = {
    "muon": _BLUE,
    "mip": _BLUE,
    "pion": _ORANGE,
    "kaon": _BROWN,
    "hadron": _VERMILION,
    "hip": _VERMILION,
    "shower": _GREEN,
    "michel": _PURPLE,
    "diffuse": _SKY,
}
_PALETTE = (_BLUE, _VERMILION, _GREEN, _PURPLE, _ORANGE, _SKY, _BROWN)
_NOISE = "#b8b8b8"
_INK, _QUIET = "#222222", "#666666"
_WIRES = {"u": "induction", "v": "induction", "y": "collection"}  # of detectors with these planes
_PLANE_WIDTH, _HEIGHT, _DPI = 4.5, 6.0, 130
_LEFT, _RIGHT = 0.84, 0.2  # margins, in inches as the width


def colours(classes: Sequence[str]) -> tuple[str, ...]:
    """Return one colour per class name, all distinct for up to seven classes."""
    chosen: list[str | None] = []
    for name in classes:
        own = _COLOURS.get(name.lower())
        chosen.append(own if own not in chosen else None)
    free = [c for c in _PALETTE if c not in chosen] or list(_PALETTE)
    taken = iter(range(len(classes)))
    return tuple(free[next(taken) % len(free)] if c is None else c for c in chosen)


class DisplayError(KitError):
    """A display cannot be written."""


def check_folder(folder: Path) -> None:
    """Raise DisplayError if no display can be written to ``folder``, which need not exist."""
    there = folder if folder.exists() else folder.absolute().parent
    if not there.is_dir():
        raise DisplayError(
            f"--display {folder}: {there} is not a folder", "choose another --display"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        cause = f"--display {folder}: this user may not write to {there}"
        raise DisplayError(cause, "choose another --display")


def file_name(labels: Labels, model: str) -> str:
    """Return a display's file name, like ``run7010_subrun1705_event85251_nugraph3.png``."""
    run, subrun, event = labels.event.event_id
    return f"run{run}_subrun{subrun}_event{event}_{model}.png"


def write_display(labels: Labels, path: Path, model: ServedModel) -> None:
    """Draw an event and write it as a PNG, which appears whole or not at all."""
    picture = io.BytesIO()
    draw(labels, model).savefig(picture, format="png", dpi=_DPI)
    try:
        write_atomically(path, picture.getvalue())
    except OSError as error:
        cause = f"{path} cannot be written: {error.strerror or error}"
        raise DisplayError(cause, "choose another --display") from error


def draw(labels: Labels, model: ServedModel) -> Figure:
    # Not pyplot: no global state, no screen, and figures are freed when dropped.
    from matplotlib.figure import Figure

    # A single plane would be too narrow for the headings.
    width = _PLANE_WIDTH * max(2, len(labels.planes))
    figure = Figure(figsize=(width, _HEIGHT), facecolor="white")
    axes = figure.subplots(1, len(labels.planes), sharey=True, squeeze=False)[0]
    left, right = _LEFT / width, 1 - _RIGHT / width
    figure.subplots_adjust(left=left, right=right, top=0.805, bottom=0.205, wspace=0.07)
    classes = model.classes("semantic", labels.classes) or ("signal",)
    palette = colours(classes)
    for plane, name in enumerate(labels.planes):
        wires = f" ({_WIRES[name]})" if set(labels.planes) == set(_WIRES) else ""
        _draw_plane(axes[plane], labels, plane, f"plane {name}{wires}", palette)
    axes[0].set_ylabel("time [ticks]", fontsize=12, color=_INK)
    time = labels.event.tensors[TIME]
    if len(time):
        axes[0].set_ylim(*_limits(time, least=200))
    else:
        axes[0].set_yticks([])
    _titles(figure, labels, model)
    _legend(figure, labels, classes, palette)
    return figure


def marker_size(hits: int) -> float:
    """Return a marker's area in points squared: dots touch, but do not blur together."""
    return float(np.clip(14000.0 / max(hits, 1), 4.0, 26.0))


def _draw_plane(axes: Axes, labels: Labels, plane: int, title: str, palette: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    tensors = labels.event.tensors
    here = tensors[PLANE] == plane
    wire, time = tensors[WIRE], tensors[TIME]
    size = marker_size(labels.event.hits)
    noise = here & labels.noise
    axes.scatter(wire[noise], time[noise], s=0.8 * size, c=_NOISE, linewidths=0, zorder=1)
    signal = np.flatnonzero(here & ~labels.noise)
    # The rarest class comes last, so that a shower does not hide a few michel hits.
    counts = np.bincount(labels.label[signal], minlength=len(palette))
    rank = np.argsort(np.argsort(-counts, kind="stable"))
    signal = signal[np.argsort(rank[labels.label[signal]], kind="stable")]
    axes.scatter(
        wire[signal],
        time[signal],
        s=size,
        c=[palette[i] for i in labels.label[signal]] or None,
        linewidths=0,
        zorder=2,
    )
    hits = int(here.sum())
    axes.set_title(title, loc="left", fontsize=12, color=_INK, pad=6)
    axes.set_title(f"{hits:,} hits", loc="right", fontsize=10.5, color=_QUIET, pad=6)
    axes.set_xlabel("wire number", fontsize=12, color=_INK)
    axes.tick_params(colors=_INK, labelsize=10.5, length=3)
    axes.grid(True, color="#ececec", linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color("#999999")
    if hits:
        axes.set_xlim(*_limits(wire[here], least=40))
        # Few enough to keep the last label clear of the next plane's first.
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    else:
        # Invisible, not absent: this keeps the axis label in line with its neighbours'.
        axes.tick_params(axis="x", labelcolor="none", length=0)
        axes.text(0.5, 0.5, "no hits", transform=axes.transAxes, ha="center", color=_QUIET)


def _limits(values: NDArray[np.generic], *, least: float) -> tuple[float, float]:
    """Return axis limits around ``values``, roughly ``least`` apart or more."""
    low, high = float(np.min(values)), float(np.max(values))
    span = max(high - low, least)
    middle = (low + high) / 2
    return middle - 0.54 * span, middle + 0.54 * span


def _titles(figure: Figure, labels: Labels, model: ServedModel) -> None:
    def title(text: str, *, side: str, heading: bool) -> None:
        figure.text(
            getattr(figure.subplotpars, side),
            0.945 if heading else 0.893,
            text,
            fontsize=16 if heading else 11.5,
            fontweight="bold" if heading else "normal",
            color=_INK if heading else _QUIET,
            ha=side,
            va="center",
            parse_math=False,
        )

    run, subrun, event = labels.event.event_id
    title(f"run {run}   subrun {subrun}   event {event}", side="left", heading=True)
    title(f"labels by {model.title}, one dot per hit", side="left", heading=False)
    if labels.event_scores is None:
        return
    chances = probabilities(labels.event_scores)
    names = model.classes("event", len(chances))
    best, *others = [f"{names[i]} {100 * chances[i]:.0f} %" for i in np.argsort(-chances)[:4]]
    title(f"event class: {best}", side="right", heading=True)
    title("   ".join(others), side="right", heading=False)


def _legend(
    figure: Figure, labels: Labels, semantic_classes: Sequence[str], palette: Sequence[str]
) -> None:
    from matplotlib.lines import Line2D

    names = (*semantic_classes, "noise (filter < 0.5)")
    counts = np.bincount(labels.label[~labels.noise], minlength=len(palette))
    counts = np.append(counts, labels.noise.sum())
    handles = [
        Line2D([], [], linestyle="", marker="o", markersize=9, color=colour, label=str(n))
        for colour, n in zip((*palette, _NOISE), counts, strict=True)
    ]
    legend = figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.52, 0.012),
        ncols=min(len(handles), int(figure.get_figwidth() / 1.6)),
        frameon=False,
        fontsize=11.5,
        handletextpad=0.1,
        columnspacing=1.5,
    )
    for text, name, count in zip(legend.get_texts(), names, counts, strict=True):
        # Here: matplotlib before 3.10 leaves out labels that begin with an underscore.
        text.set(text=f"{name} {count:,}", parse_math=False)
        # A class without hits stays, so that the legends of many events can be compared.
        text.set_color(_INK if count else "#aaaaaa")
