#!/usr/bin/env python3
"""Train the demo weights on simulated events and write them into a model repository.

    python3 scripts/train_demo.py --out model_repository

Takes about eight minutes of one CPU core, and gives the same weights again for the same packages
on the same kind of processor (another one rounds otherwise).
Runs in the execution environment, which has pynuml, nugraph and pytorch_lightning.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from deploy.bootstrap import ensure_execution_environment

ensure_execution_environment()
# Last: numl_serving is the installed one, which has its native library.
sys.path.append(str(ROOT / "envs" / "numl"))

import torch
from numl_demo import hdf5, networks, publish, simulate, train
from numl_serving.errors import ServingError

from deploy.arguments import Parser

TRAINING_SEED, UNSEEN_SEED = 1, 2
UNSEEN_EVENTS = 200


def main() -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        prog="python3 scripts/train_demo.py",
        description="Train the demo weights on simulated events.",
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "model_repository", help="model repository to write to"
    )
    parser.add_argument(
        "--events-out",
        type=Path,
        default=ROOT / "scripts" / "data" / "demo_events.h5",
        help="where to write the packaged events (default: %(default)s)",
    )
    parser.add_argument(
        "--model", choices=sorted(networks.MODELS), action="append", help="only this one"
    )
    parser.add_argument(
        "--events", type=int, default=500, metavar="N", help="training events (default %(default)s)"
    )
    parser.add_argument(
        "--file", type=Path, help="train on this file's events instead of simulating them"
    )
    arguments = parser.parse_args()
    if arguments.events < 1:
        parser.error("--events must be at least 1")

    started = time.monotonic()

    def report(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {line}", flush=True)

    torch.set_num_threads(1)
    scratch = tempfile.TemporaryDirectory()
    tempfile.tempdir = scratch.name  # where PyTorch Geometric leaves files for good
    try:
        hdf5.write_events(arguments.events_out, publish.packaged_events())
        if arguments.file:
            events = hdf5.read_events(arguments.file)
        else:
            events = list(simulate.simulate_events(arguments.events, TRAINING_SEED))
        unseen = list(simulate.simulate_events(UNSEEN_EVENTS, UNSEEN_SEED))
        report(f"{len(events)} events to train on, {len(unseen)} to judge by")
        for name in arguments.model or sorted(networks.MODELS):
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = Path(folder) / f"{name}_demo.ckpt"
                trained = train.train(name, events, checkpoint, train.SETTINGS[name], report)
                accuracy = train.evaluate(trained, unseen)
                publish.publish(trained, checkpoint, accuracy, arguments.out / name / "1")
            report(
                f"{name}: {accuracy['semantic']:.1%} of hits right on unseen events (largest "
                f"class {accuracy['semantic_largest_class']:.1%}), {trained.seconds:.0f} s of CPU"
            )
            if name == "nugraph2":
                publish.link_files(arguments.out / name / "1", arguments.out / "nugraph2_cpu" / "1")
    except (OSError, KeyError, ServingError, simulate.SimulationError, publish.PublishError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; models that were finished are kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
