#!/usr/bin/env python3
"""Measure how long a .sif takes, how large it is, and how soon a server is ready.

``python3 scripts/benchmark_build.py IMAGE`` builds the .sif from an image of the Docker engine
again and again, in turn with ``apptainer build`` (its defaults) and with ``docker export`` to
disk, which is the floor: nothing that takes the image from the engine can be faster. Then it
starts servers in turn. Other work on the machine disturbs all of them alike: trust the ratios.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from deploy.bootstrap import ensure_kit

ensure_kit()

import argparse
import json
import signal
import tempfile
from collections.abc import Sequence

from deploy.arguments import Parser
from deploy.benchmark.builds import Routes, measure_builds
from deploy.benchmark.report import document, show
from deploy.benchmark.starts import Start, from_image, from_sif, from_wired, measure_starts
from deploy.cli import describe_os_error
from deploy.console import Console
from deploy.errors import KitError
from deploy.images.engine import connect
from deploy.sif.squashfs import COMPRESSIONS
from deploy.sif.tools import find_tools


def parser() -> Parser:
    """Return the command's parser."""
    parser = Parser(
        prog="python3 scripts/benchmark_build.py",
        description="Measure how long a .sif takes, how large it is, how soon a server is ready.",
    )
    parser.add_argument(
        "image",
        nargs="?",
        default="numlkit/numl:24.10-serving",
        help="an image of the Docker engine (default: numlkit/numl:24.10-serving)",
    )
    parser.add_argument("--rounds", type=_rounds, default=3, metavar="N", help="default: 3")
    parser.add_argument(
        "--apptainer-rounds",
        type=int,
        default=1,
        metavar="N",
        help="in how many of them apptainer build has its turn, which takes minutes (default: 1)",
    )
    parser.add_argument("--compressor", choices=tuple(COMPRESSIONS), default="zstd")
    parser.add_argument("--no-servers", action="store_true", help="builds only")
    parser.add_argument(
        "--wired",
        type=Path,
        metavar="DIR",
        help="also start a server from the packed environment in this repository, which "
        "deploy/build.py --target env --wire DIR makes",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="DIR",
        help="where the results are written, and removed afterwards",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here")
    return parser


def _rounds(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one round is needed")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(argv)
    console = Console()
    # Ended by a signal, it removes what it has written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.json is not None:
            options.json.touch()  # told now, not after an hour's work, if it cannot be written
        with tempfile.TemporaryDirectory(prefix="numlkit-benchmark-", dir=options.folder) as name:
            _measure(options, Path(name), console)
    except KitError as error:
        console.error(error)
        return 1
    except OSError as error:
        console.error(describe_os_error(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _measure(options: argparse.Namespace, folder: Path, console: Console) -> None:
    compression = COMPRESSIONS[options.compressor]
    routes = Routes(connect(), options.image, find_tools(compression), compression, folder)
    builds = measure_builds(routes, options.rounds, options.apptainer_rounds, console)
    starts: dict[str, Start] = {}
    if not options.no_servers:
        sif = next(path for path in (folder / "layers.sif", folder / "export.sif") if path.exists())
        starts = {
            "from the .sif": from_sif(sif),
            "from the image": from_image(routes.client, options.image),
        }
        if options.wired is not None:
            starts["from the packed environment"] = from_wired(options.wired.absolute())
    ready = measure_starts(starts, options.rounds, console)
    show(builds, ready, console)
    if options.json is not None:
        text = json.dumps(document(builds, ready, routes), indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
