"""What a benchmark says: lines for people, JSON, and a plot."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .measure import STAGES, Times, ratio
from .paths import GRADIENTS_OFF, GRADIENTS_ON

_REFERENCES = (GRADIENTS_ON, GRADIENTS_OFF)


@dataclass(frozen=True, slots=True)
class Case:
    """One model on events of one size.

    Attributes:
        model: Its name.
        network: Architecture and variant.
        hits: Hits asked for.
        sizes: Hits and spacepoints of each event.
        times: By path.
        differences: What each of our answers has against the reference's, if anything.
    """

    model: str
    network: str
    hits: int
    sizes: Sequence[tuple[int, int]]
    times: Mapping[str, Times]
    differences: Sequence[str]


def lines(case: Case) -> list[str]:
    """Return a case as a table."""
    rounds, events = next(iter(case.times.values())).stages["event"].shape
    hits = sorted(hits for hits, _ in case.sizes)
    spacepoints = sorted(spacepoints for _, spacepoints in case.sizes)
    said = [
        f"{case.model}, {case.network}: {events} events of {hits[0]} to {hits[-1]} hits and "
        f"{spacepoints[0]} to {spacepoints[-1]} spacepoints, {rounds} rounds",
        f"  {'ms':<26}{'graph':>9}{'network':>9}{'event':>9}{'p99':>9}{'events/s':>10}",
    ]
    for name, times in case.times.items():
        medians = [1e3 * times.median(stage) for stage in STAGES]
        numbers = "".join(f"{number:9.2f}" for number in (*medians, 1e3 * times.quantile(0.99)))
        said.append(f"  {name:<26}{numbers}{times.rate():10.1f}")
    for ours in case.times:
        if ours in _REFERENCES:
            continue
        for reference in _REFERENCES:
            if reference in case.times:
                said.append(_ratio_line(case, ours, reference))
    said += [f"  ANSWERS DIFFER: {difference}" for difference in case.differences]
    return said


def _ratio_line(case: Case, ours: str, reference: str) -> str:
    parts = []
    for stage in STAGES:
        times = ratio(case.times[reference], case.times[ours], stage)
        parts.append(f"{stage} {times.median:.1f}x ({times.low:.1f} to {times.high:.1f})")
    return f"  {ours} against {reference}: {', '.join(parts)}"


def as_json(cases: Sequence[Case], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything as JSON can hold it; times in seconds."""
    return {"format": 1, "machine": dict(facts), "cases": [_case(case) for case in cases]}


def _case(case: Case) -> dict[str, Any]:
    ours = [name for name in case.times if name not in _REFERENCES]
    return {
        "model": case.model,
        "network": case.network,
        "hits": case.hits,
        "events": [{"hits": hits, "spacepoints": points} for hits, points in case.sizes],
        "rounds": next(iter(case.times.values())).stages["event"].shape[0],
        "paths": {
            name: {
                "events_per_second": times.rate(),
                **{
                    stage: {
                        "median": times.median(stage),
                        **{f"p{q}": times.quantile(q / 100, stage) for q in (10, 90, 99)},
                    }
                    for stage in STAGES
                },
            }
            for name, times in case.times.items()
        },
        "ratios": [
            {
                "of": name,
                "against": reference,
                **{
                    stage: asdict(ratio(case.times[reference], case.times[name], stage))
                    for stage in STAGES
                },
            }
            for name in ours
            for reference in _REFERENCES
            if reference in case.times
        ],
        "differences": list(case.differences),
    }


def machine(core: int) -> dict[str, Any]:
    """Return what a reader must know of the machine and of the packages."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "pinned_to_core": core,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "load_average": os.getloadavg(),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor()


def plot(cases: Sequence[Case], path: Path) -> None:
    """Draw latency against hits, one panel per model; the format follows the file's name."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    models = list(dict.fromkeys(case.model for case in cases))
    figure, panels = plt.subplots(
        1, len(models), figsize=(5.5 * len(models), 4.2), sharey=True, squeeze=False
    )
    for panel, model in zip(panels[0], models, strict=True):
        chosen = sorted((case for case in cases if case.model == model), key=lambda c: c.hits)
        for name in chosen[0].times:
            hits = [float(np.mean([h for h, _ in case.sizes])) for case in chosen]
            middle, low, high = (
                [1e3 * case.times[name].quantile(q) for case in chosen] for q in (0.5, 0.1, 0.9)
            )
            (line,) = panel.plot(hits, middle, marker="o", label=name)
            panel.fill_between(hits, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        panel.set(xscale="log", yscale="log", xlabel="hits", title=f"{model}, {chosen[0].network}")
        panel.grid(which="both", alpha=0.3)
    panels[0][0].set_ylabel("one event on one core (ms): median, 10% to 90%")
    panels[0][0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
