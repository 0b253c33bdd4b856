"""What was measured, as tables and for other programs."""

from __future__ import annotations

import os
import platform

from deploy.benchmark.builds import APPTAINER, FLOOR, Routes
from deploy.benchmark.series import Results, Series
from deploy.console import Console


def show(builds: Results, starts: Results, console: Console) -> None:
    """Print both tables."""
    rows = []
    for name, series in builds.items():
        compared = [name, *_times(series), f"{(series.bytes or 0) / 1e6:.0f}"]
        for other in (FLOOR, APPTAINER):
            if other in builds:
                compared.append(f"{series.median / builds[other].median:.2f}")
            else:
                compared.append("-")
        reference = builds[APPTAINER].bytes if APPTAINER in builds else None
        is_sif = name != FLOOR and series.bytes is not None and reference is not None
        compared.append(f"{series.bytes / reference:.3f}" if is_sif else "-")  # type: ignore[operator]
        rows.append(compared)
    columns = ("", "s", "spread", "MB", "of the floor", "of apptainer's", "of its size")
    console.table("build", columns, rows)
    if starts:
        rows = [[name, *_times(series)] for name, series in starts.items()]
        console.table("start until all models gave the right values", ("", "s", "spread"), rows)


def _times(series: Series) -> tuple[str, str]:
    spread = f"{min(series.seconds):.1f} to {max(series.seconds):.1f}"
    return f"{series.median:.1f}", spread


def document(builds: Results, starts: Results, routes: Routes) -> dict[str, object]:
    """Return everything that was measured, for other programs."""
    measured = {
        kind: {name: vars(series) for name, series in results.items()}
        for kind, results in (("build", builds), ("start", starts))
    }
    return {
        "image": routes.image,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "apptainer": str(routes.tools.apptainer),
        "mksquashfs": str(routes.tools.mksquashfs),
        "compression": vars(routes.compression),
        **measured,
    }
