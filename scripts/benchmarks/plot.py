"""Draw a run: latency against hits, throughput against concurrency."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.benchmarks.cells import TITLES
from scripts.benchmarks.document import GRADIENTS_OFF, GRADIENTS_ON, SERVING, Document

_COLOURS = {"ours": "tab:blue", "today": "tab:red", "best": "tab:orange"}
_STYLES = {"grpc": "-", "http": "--", "shm": ":"}
_PATHS = {
    SERVING: ("tab:blue", "in one process, one core"),
    GRADIENTS_ON: ("tab:red", "reference in one process"),
    GRADIENTS_OFF: ("tab:orange", "reference, gradients off"),
}


def plot(run: Document, path: Path) -> None:
    """Write a figure with a row of panels for each model; the format follows the file's name."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    models = list(run["models"])
    figure, panels = pyplot.subplots(
        len(models), 2, figsize=(14, 4.4 * len(models)), squeeze=False, layout="constrained"
    )
    for (left, right), model in zip(panels, models, strict=True):
        _latency(left, run, model)
        _throughput(right, run, model)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _hits(run: Document, entry: Document) -> float:
    return float(run["sets"][entry["events"]]["hits"])


def _latency(panel: Any, run: Document, model: str) -> None:
    lowest = min((entry["concurrency"] for entry in run["served"]), default=1)
    lines: dict[tuple[str, ...], list[tuple[float, ...]]] = {}
    for entry in run["in_process"]:
        if entry["model"] == model:
            values = (entry["event"][q] for q in ("p50", "p10", "p90"))
            lines.setdefault(("", entry["path"]), []).append((_hits(run, entry), *values))
    for entry in run["served"]:
        if entry["model"] == model and entry["concurrency"] == lowest:
            key = (entry["server"], entry["protocol"])
            values = (entry["latency"][q] for q in ("p50", "p10", "p90"))
            lines.setdefault(key, []).append((_hits(run, entry), *values))
    for (server, what), points in lines.items():
        points.sort()
        hits = [point[0] for point in points]
        middle, low, high = ([1e3 * point[i] for point in points] for i in (1, 2, 3))
        if server:
            colour, label, style = _COLOURS[server], f"{TITLES[server]}, {what}", _STYLES[what]
        else:
            (colour, label), style = _PATHS[what], ""
        panel.plot(hits, middle, marker="o", ms=4, ls=style or "-.", color=colour, label=label)
        panel.fill_between(hits, low, high, color=colour, alpha=0.12, linewidth=0)
    panel.set(
        xscale="log", yscale="log", xlabel="hits", ylabel="ms for one event (median, 10% to 90%)",
        title=f"{model}: one event at a time",
    )  # fmt: skip
    panel.grid(which="both", alpha=0.3)
    panel.set_ylim(bottom=panel.get_ylim()[0] / 3)  # room for the legend, below all lines
    panel.legend(fontsize="x-small", loc="lower right")


def _throughput(panel: Any, run: Document, model: str) -> None:
    lines: dict[tuple[str, str, str], list[tuple[int, float, float, float]]] = {}
    for entry in run["served"]:
        if entry["model"] == model:
            rate = entry["events_per_second"]
            lines.setdefault((entry["events"], entry["server"], entry["protocol"]), []).append(
                (entry["concurrency"], rate["median"], rate["low"], rate["high"])
            )
    loaded = sorted({events for (events, *_), points in lines.items() if len(points) > 1})
    markers = dict(zip(loaded, "osv^D*", strict=False))
    for (events, server, protocol), points in lines.items():
        if events not in markers:
            continue
        points.sort()
        clients, middle, low, high = (list(each) for each in zip(*points, strict=True))
        panel.plot(
            clients, middle, marker=markers[events], ms=4, ls=_STYLES[protocol],
            color=_COLOURS[server], label=f"{events}: {TITLES[server]}, {protocol}",
        )  # fmt: skip
        panel.fill_between(clients, low, high, color=_COLOURS[server], alpha=0.12, linewidth=0)
    panel.set(
        xscale="log", yscale="log", xlabel="clients, each with one request at a time",
        ylabel="events per second", title=f"{model}: several clients",
    )  # fmt: skip
    ticks = sorted({entry["concurrency"] for entry in run["served"]})
    panel.set_xticks(ticks, [str(tick) for tick in ticks])
    panel.minorticks_off()
    panel.grid(alpha=0.3)
    if markers:
        # Beside the panel: there are lines everywhere in it.
        panel.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1.01, 1.0))
