"""How long a server takes for an event, from the stored benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deploy.host.errors import KitError

STORED = Path(__file__).resolve().parents[1] / "data" / "speed" / "speed.json"
_CLIENTS = 8
_ABOUT = 0.05
"""The events that the benchmark calls those of a size differ from it by up to so much."""


def core_seconds(model: str, hits: float, run: Mapping[str, Any] | None = None) -> float:
    """Return the seconds that a core of a busy server takes for an event of so many hits.

    Between the sizes that were measured it is interpolated.

    Args:
        run: A run of ``scripts/benchmark.py``; None: the stored one.

    Raises:
        KitError: The model was not measured, or no events of about this size.
    """
    run = json.loads(STORED.read_text(encoding="utf-8")) if run is None else run
    cores = len(run["machine"]["used_cores"])
    times = {
        run["sets"][each["events"]]["hits"]: cores / each["events_per_second"]["median"]
        for each in run["served"]
        if (each["model"], each["server"], each["protocol"]) == (model, "ours", "grpc")
        and each["concurrency"] == _CLIENTS
    }
    if not times:
        models = ", ".join(run["models"])
        raise KitError(f"model {model} was not measured", f"one of {models}, or --rate")
    sizes = sorted(times)
    if not sizes[0] * (1 - _ABOUT) <= hits <= sizes[-1] * (1 + _ABOUT):
        cause = f"events of {hits:,.0f} hits were not measured"
        remedy = f"{sizes[0]:,.0f} to {sizes[-1]:,.0f} hits, or --rate with what numlkit load shows"
        raise KitError(cause, remedy)
    return float(np.interp(hits, sizes, [times[size] for size in sizes]))
