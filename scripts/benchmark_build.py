#!/usr/bin/env python3
"""Measure how long a .sif takes to build, how large it is, and how soon a server is ready.

``python3 scripts/benchmark_build.py IMAGE`` builds the .sif from an image of the Docker engine
in rounds, in turn with ``apptainer build`` (its defaults) and with ``docker export`` to disk,
the floor: nothing that takes the image from the engine can be faster. Then it starts servers in
turn. Other work on the machine slows all of them alike: trust the ratios.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from deploy.host.bootstrap import ensure_kit

ensure_kit()

import argparse
import json
import os
import platform
import signal
import tempfile
from collections.abc import Sequence

from deploy.artefacts.docker_client import connect
from deploy.artefacts.sif_file import LEVELS
from deploy.artefacts.tools import find_tools
from deploy.host.cli import carry_out, end_in_order
from deploy.host.command_line import Parser
from deploy.host.console import Console
from deploy.host.files import write_atomically
from scripts.benchmarks.builds import APPTAINER, FLOOR, Results, Routes, Series, measure_builds
from scripts.benchmarks.flags import as_count, as_output
from scripts.benchmarks.starts import Start, from_image, from_sif, from_wired, measure_starts


def parser() -> Parser:
    parser = Parser(
        prog="python3 scripts/benchmark_build.py",
        description="Measure how long a .sif takes to build, its size, how soon a server is ready.",
    )
    parser.add_argument(
        "image",
        nargs="?",
        default="numlkit/numl:24.10-serving",
        help="an image of the Docker engine (default: numlkit/numl:24.10-serving)",
    )
    parser.add_argument("--rounds", type=as_count, default=3, metavar="N", help="default: 3")
    parser.add_argument(
        "--apptainer-rounds",
        type=int,
        default=1,
        metavar="N",
        help="rounds that include apptainer build, which takes minutes (default: 1)",
    )
    parser.add_argument("--compressor", choices=tuple(LEVELS), default="zstd")
    parser.add_argument("--no-servers", action="store_true", help="builds only")
    parser.add_argument(
        "--wired",
        type=Path,
        metavar="DIR",
        help="also start a server from the packed environment in this repository, which "
        "numlkit build --target env --wire DIR makes",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="DIR",
        help="where results are written; removed afterwards",
    )
    parser.add_argument("--json", type=as_output, metavar="FILE", help="write everything here")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(argv)
    console = Console()
    # Ended by a signal, it removes what it wrote.
    end_in_order(signal.SIGTERM, signal.SIGHUP)
    return carry_out(lambda: _run(options, console), console)


def _run(options: argparse.Namespace, console: Console) -> int:
    with tempfile.TemporaryDirectory(prefix="numlkit-benchmark-", dir=options.folder) as name:
        _measure(options, Path(name), console)
    return 0


def _measure(options: argparse.Namespace, folder: Path, console: Console) -> None:
    routes = Routes(connect(), options.image, find_tools(options.compressor), folder)
    builds = measure_builds(routes, options.rounds, options.apptainer_rounds, console)
    starts: dict[str, Start] = {}
    if not options.no_servers:
        starts = {
            "from the .sif": from_sif(routes.sif),
            "from the image": from_image(routes.client, options.image),
        }
        if options.wired is not None:
            starts["from the packed environment"] = from_wired(options.wired.absolute())
    ready = measure_starts(starts, options.rounds, console)
    _show(builds, ready, console)
    if options.json is not None:
        text = json.dumps(_document(builds, ready, routes), indent=2)
        write_atomically(options.json, text + "\n")


def _show(builds: Results, starts: Results, console: Console) -> None:
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
        console.table(
            "from start to the reference output of every model", ("", "s", "spread"), rows
        )


def _times(series: Series) -> tuple[str, str]:
    spread = f"{min(series.seconds):.1f} to {max(series.seconds):.1f}"
    return f"{series.median:.1f}", spread


def _document(builds: Results, starts: Results, routes: Routes) -> dict[str, object]:
    measured = {
        kind: {name: vars(series) for name, series in results.items()}
        for kind, results in (("build", builds), ("start", starts))
    }
    return {
        "image": routes.image,
        "cores": os.cpu_count(),
        "load_after": os.getloadavg(),
        "kernel": platform.release(),
        "apptainer": str(routes.tools.apptainer),
        "mksquashfs": str(routes.tools.mksquashfs),
        "compressor": routes.tools.compressor,
        **measured,
    }


if __name__ == "__main__":
    sys.exit(main())
