"""A run as a JSON document, from which tables, plot and README are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from scripts.benchmarks.cells import STAGES, Cell, Floats, PathTimes, Results, Turn

FORMAT = 2
GRADIENTS_ON = "reference, gradients on"
GRADIENTS_OFF = "reference, gradients off"
SERVING = "numl_serving"
REFERENCES = (GRADIENTS_ON, GRADIENTS_OFF)
"""The paths that ``numl_bench.paths`` measures in one process."""

Document: TypeAlias = dict[str, Any]


def spread(values: ArrayLike) -> dict[str, float]:
    """Return the median, and the range of the middle 80% of values."""
    low, median, high = np.quantile(np.asarray(values, float), (0.1, 0.5, 0.9))
    return {"median": float(median), "low": float(low), "high": float(high)}


def document(results: Results) -> Document:
    """Return a run as JSON data; times in seconds, ratios and rates round by round."""
    return {
        "format": FORMAT,
        "machine": results.machine,
        "models": results.models,
        "sets": {
            name: {"hits": hits, "spacepoints": spacepoints, "events": events}
            for name, (hits, spacepoints, events) in results.sets.items()
        },
        "in_process": [
            _path(model, events, path, times)
            for (model, events, path), times in results.in_process.items()
        ],
        "in_process_ratios": list(_path_ratios(results)),
        "served": [_cell(cell, turns, results) for cell, turns in results.served.items()],
        "served_ratios": list(_served_ratios(results)),
        "differences": list(results.differences),
    }


def _quantiles(seconds: Floats) -> dict[str, float]:
    named = {"p50": 0.5, "p10": 0.1, "p90": 0.9, "p99": 0.99}
    return {name: float(np.quantile(seconds, q)) for name, q in named.items()}


def _path(model: str, events: str, path: str, times: PathTimes) -> Document:
    return {
        "model": model,
        "events": events,
        "path": path,
        "rounds": len(times.rounds),
        "events_per_second": spread(times.rate()),
        **{stage: _quantiles(times.of(stage)) for stage in STAGES},
    }


def _path_ratios(results: Results) -> Iterable[Document]:
    for (model, events, path), times in results.in_process.items():
        for against in REFERENCES:
            reference = results.in_process.get((model, events, against))
            if path in REFERENCES or reference is None:
                continue
            ratios = {
                stage: spread(reference.of(stage).sum(axis=1) / times.of(stage).sum(axis=1))
                for stage in STAGES
            }
            yield {"model": model, "events": events, "of": path, "against": against, **ratios}


def _cell(cell: Cell, turns: Sequence[Turn], results: Results) -> Document:
    latencies = np.concatenate([turn.latencies for turn in turns])
    entry: Document = {
        "model": cell.model,
        "events": cell.events,
        "server": cell.server,
        "protocol": cell.protocol,
        "concurrency": cell.concurrency,
        "requests": len(latencies),
        "latency": {"mean": float(latencies.mean()), **_quantiles(latencies)},
        "events_per_second": spread([turn.rate for turn in turns]),
        **{
            part: float(np.median([getattr(turn, part) for turn in turns]))
            for part in ("preprocess", "network", "queue", "execute")
        },
        # What is not the model's own time: Triton, its Python backend, transport and client.
        "overhead": spread(
            [float(turn.latencies.mean()) - turn.preprocess - turn.network for turn in turns]
        ),
    }
    alone = results.in_process.get((cell.model, cell.events, SERVING))
    if alone is not None and cell.server == "ours":
        # Against one core in one process: its median round stands for the whole run.
        one = float(np.median(alone.rate()))
        entry["times_one_core"] = spread([turn.rate / one for turn in turns])
    return entry


def _served_ratios(results: Results) -> Iterable[Document]:
    for cell, turns in results.served.items():
        if cell.server == "ours":
            continue
        for ours, faster in results.served.items():
            same = (ours.model, ours.events, ours.concurrency)
            if ours.server != "ours" or same != (cell.model, cell.events, cell.concurrency):
                continue
            pairs = list(zip(turns, faster, strict=False))
            yield {
                "model": cell.model,
                "events": cell.events,
                "protocol": ours.protocol,
                "against": cell.server,
                "against_protocol": cell.protocol,
                "concurrency": cell.concurrency,
                "events_per_second": spread([quick.rate / slow.rate for slow, quick in pairs]),
                "latency": spread(
                    [
                        float(np.median(slow.latencies) / np.median(quick.latencies))
                        for slow, quick in pairs
                    ]
                ),
            }


def find(entries: Iterable[Document], **wanted: Any) -> Document | None:
    """Return the first entry with these values, or None."""
    for entry in entries:
        if all(entry.get(name) == value for name, value in wanted.items()):
            return entry
    return None
