#!/usr/bin/env python3
"""Measure our serving path against NuGraph's own code, side by side on one core.

    python3 scripts/benchmark.py                          # 200 and 1300 hits, all models
    python3 scripts/benchmark.py --hits 100 200 500 1300 2500 5000 --json run.json --plot run.png

The reference is pynuml's and PyTorch Geometric's preprocessing with nugraph 24.7.1's own models,
with gradients on, as it is mostly served, and off. Everything runs in this one process, pinned to
one core, one thread, interleaved event by event; answers are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from deploy.bootstrap import ensure_execution_environment

ensure_execution_environment()
sys.path.insert(0, str(ROOT / "envs" / "numl"))

from deploy.paths import cache_folder

MODELS = ("nugraph3", "nugraph2")
HITS = (200, 1300)


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument(
        "--model",
        type=Path,
        action="append",
        metavar="NAME|DIR",
        help="a model of model_repository, or a folder with model.json and weights "
        "(may be repeated; default: nugraph3 and nugraph2)",
    )
    command.add_argument(
        "--hits", type=int, nargs="+", default=HITS, metavar="N", help="event sizes (default both)"
    )
    command.add_argument(
        "--events", type=int, default=4, metavar="N", help="events of each size (default 4)"
    )
    command.add_argument(
        "--seconds", type=float, default=20.0, metavar="S", help="per model and size (default 20)"
    )
    command.add_argument("--core", type=int, metavar="N", help="core to use (default: the last)")
    command.add_argument("--seed", type=int, default=3, metavar="S", help="of the events")
    command.add_argument(
        "--eager", action="store_true", help="do not compile the networks, which takes a minute"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    command.add_argument("--plot", type=Path, metavar="FILE", help="draw latency against hits")
    return command


def main() -> int:
    """Run the command; returns the exit code: 1 if any answer differs from the reference's."""
    command = parser()
    options = command.parse_args()
    if min(options.hits) < 60:
        command.error("--hits must be at least 60 (20 in each plane)")
    if options.events < 1:
        command.error("--events must be at least 1")
    allowed = sorted(os.sched_getaffinity(0))
    core = allowed[-1] if options.core is None else options.core
    if core not in allowed:
        command.error(f"--core must be one of {', '.join(map(str, allowed))}")
    # Before torch is imported: its threads are made then.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.sched_setaffinity(0, {core})

    from numl_bench import report
    from numl_bench.compare import compare
    from numl_demo.simulate import SimulationError
    from numl_serving.errors import ServingError

    started = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {line}", flush=True)

    cases = []
    try:
        for model in options.model or [Path(name) for name in MODELS]:
            name, folder = model.name, model
            if not (folder / "model.json").exists():
                folder = ROOT / "model_repository" / model / "1"
            for case in compare(
                name,
                folder,
                hits=options.hits,
                events=options.events,
                seed=options.seed,
                seconds=options.seconds,
                compiled=None if options.eager else cache_folder() / "compiled",
                say=say,
            ):
                print("\n".join(report.lines(case)), flush=True)
                cases.append(case)
        if options.json:
            content = report.as_json(cases, report.machine(core))
            options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if options.plot:
            report.plot(cases, options.plot)
    except (ServingError, SimulationError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return 1 if any(case.differences for case in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
