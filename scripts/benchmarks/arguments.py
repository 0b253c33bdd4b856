"""The options of ``scripts/benchmark.py``."""

from __future__ import annotations

import argparse
from pathlib import Path

from deploy.host.command_line import Parser, as_seconds, count_to
from scripts.benchmarks.cells import PROTOCOLS
from scripts.benchmarks.flags import (
    FIGURES,
    as_cores,
    as_count,
    as_figure,
    as_hits,
    as_names,
    as_output,
)

LATENCY_HITS = (100, 200, 500, 1300, 2500, 5000)
LOADED_HITS = (200, 1300)
CONCURRENCIES = (1, 2, 4, 8)
SEED = 3


def benchmark_parser(description: str | None) -> Parser:
    flags = Parser(
        prog="python3 scripts/benchmark.py",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument(
        "what", nargs="?", default="speed",
        choices=("speed", "memory", "start", "heal", "extension", "releases", "readme"),
        help="what to measure (default: speed)",
    )  # fmt: skip
    flags.add_argument(
        "--models",
        type=as_names,
        metavar="A,B",
        help="models (default: nugraph3,nugraph2; start and heal: all three)",
    )
    flags.add_argument(
        "--checkpoint", action="append", metavar="MODEL=PATH", help="own weights, as for up.py"
    )
    flags.add_argument("--norm", action="append", metavar="MODEL=FILE", help="as for up.py")
    flags.add_argument(
        "--hits", type=as_hits, nargs="+", default=LATENCY_HITS, metavar="N",
        help="sizes of simulated events for measuring latency",
    )  # fmt: skip
    flags.add_argument(
        "--loaded-hits", type=as_hits, nargs="*", default=LOADED_HITS, metavar="N",
        help="those of them for measuring throughput, too (default: 200 1300)",
    )  # fmt: skip
    flags.add_argument(
        "--file", type=Path, metavar="FILE.h5", help="also measure the events of this file"
    )
    flags.add_argument(
        "--events", type=as_count, default=4, metavar="N", help="events of each size (default: 4)"
    )
    flags.add_argument(
        "--seed",
        type=count_to(2**31 - 1, least=0),
        default=SEED,
        metavar="S",
        help="random seed of the events",
    )
    flags.add_argument(
        "--protocols", nargs="+", choices=PROTOCOLS, default=PROTOCOLS,
        help="how clients reach the server; shm: gRPC with tensors in system shared memory",
    )  # fmt: skip
    flags.add_argument(
        "--concurrency", type=as_count, nargs="+", default=CONCURRENCIES, metavar="N",
        help="numbers of clients (default: 1 2 4 8)",
    )  # fmt: skip
    flags.add_argument("--rounds", type=as_count, default=3, metavar="N", help="(default: 3)")
    flags.add_argument(
        "--seconds", type=as_seconds, default=0.7, metavar="S", help="of one turn (default: 0.7)"
    )
    flags.add_argument(
        "--only", choices=("in-process", "server"), help="measure nothing else, and no reference "
        "through the server",
    )  # fmt: skip
    flags.add_argument(
        "--cores", type=as_cores, metavar="A,B", help="cores to use (default: all this process may)"
    )
    flags.add_argument(
        "--count", type=as_count, default=5000, metavar="N",
        help="of memory: events sent to each model (default: 5000)",
    )  # fmt: skip
    flags.add_argument(
        "--triton", action="append", default=[], metavar="RELEASE|IMAGE|PATH",
        help="of releases: another Triton, as for numlkit build; may be given several times",
    )  # fmt: skip
    flags.add_argument(
        "--built", type=Path, action="append", default=[], metavar="DIR",
        help="of releases: an output folder of numlkit build, for the sizes of what is in it",
    )  # fmt: skip
    flags.add_argument(
        "--quick",
        action="store_true",
        help="small sizes, one round, to see that it works; other options still apply",
    )
    flags.add_argument("--json", type=as_output, metavar="FILE", help="write all figures here")
    flags.add_argument(
        "--plot", type=as_figure, metavar="FILE",
        help=f"draw latency and throughput ({', '.join(FIGURES)})",
    )  # fmt: skip
    return flags
