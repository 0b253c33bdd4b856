#!/usr/bin/env python3
"""Write simulated events, with their truth, in pynuml's HDF5 layout.

    python3 scripts/simulate_events.py OUT.h5 --events 20 --seed 7
    python3 scripts/simulate_events.py OUT.gnn.h5 --graphs nugraph3   # for numlkit evaluate

Graphs are made by pynuml 25.4.0 in the full execution environment, which is made if need be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from deploy.host.bootstrap import ensure_kit

IN_FULL = Path(sys.prefix, "numlkit-environment.json").exists()
if not IN_FULL:
    ensure_kit()
sys.path.append(str(ROOT / "envs" / "numl"))

from numl_demo.hdf5 import write_events
from numl_demo.simulate import DEFAULT_HITS, SimulatedEvent, SimulationError, simulate_events

from deploy.host.command_line import Parser
from scripts.nugraph25 import nugraph25


def main() -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        prog="python3 scripts/simulate_events.py",
        description="Write simulated events in pynuml's HDF5 layout.",
    )
    parser.add_argument("out", type=Path, metavar="OUT.h5", help="file to write (replaced)")
    parser.add_argument("--events", type=int, default=10, metavar="N", help="how many (default 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="same seed, same events")
    parser.add_argument(
        "--graphs",
        choices=("nugraph2", "nugraph3"),
        help="write a processed graph file with the classes of this model; all in the split test",
    )
    parser.add_argument(
        "--hits-range",
        type=int,
        nargs=2,
        default=DEFAULT_HITS,
        metavar=("LOW", "HIGH"),
        help="hits per event, all planes together (default %(default)s)",
    )
    arguments = parser.parse_args()
    low, high = arguments.hits_range
    if arguments.events < 1:
        parser.error("--events must be at least 1")
    if not 0 <= arguments.seed < 2**31:
        parser.error("--seed must be from 0 to 2147483647")
    if not 60 <= low < high:
        parser.error("--hits-range needs LOW < HIGH, and LOW at least 60 (20 in each plane)")
    if not arguments.out.parent.is_dir():
        parser.error(f"no such folder: {arguments.out.parent}")

    def progress(done: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == arguments.events else ""
            print(f"\r{done} of {arguments.events} events", end=end, file=sys.stderr, flush=True)

    try:
        events = simulate_events(arguments.events, arguments.seed, (low, high))
        if arguments.graphs:
            count = _write_graphs(arguments.out, events, arguments.graphs)
        else:
            count = write_events(arguments.out, events, progress)
    except (OSError, SimulationError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was written", file=sys.stderr)
        return 130
    print(f"{arguments.out}: {count} simulated events, seed {arguments.seed}")
    return 0


def _write_graphs(out: Path, events: Iterable[SimulatedEvent], model: str) -> int:
    if not IN_FULL:
        from scripts.environments import continue_in_full

        continue_in_full()
    from numl_demo.nugraph25 import lay_beside

    lay_beside(nugraph25())
    from numl_demo.graphs import NUGRAPH2_LABELS, NUGRAPH3_LABELS, write_graphs

    return write_graphs(out, events, NUGRAPH3_LABELS if model == "nugraph3" else NUGRAPH2_LABELS)


if __name__ == "__main__":
    sys.exit(main())
