#!/usr/bin/env python3
"""Train the demo weights on simulated events and write them into a model repository.

    python3 scripts/train_demo.py --out dist/demo

Takes about ten minutes of one CPU core for each model. The same packages on the same kind of
processor give the same weights again; another one rounds otherwise.
Runs in the full execution environment, which has torch and pytorch_lightning, with nugraph and
pynuml 25.4.0 laid beside it (envs/nugraph25.txt), and makes both if need be.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from deploy.host.bootstrap import ensure_kit

# Of the Pythons that have torch, only that of the full environment has all the rest.
if not Path(sys.prefix, "numlkit-environment.json").exists() or find_spec("torch") is None:
    ensure_kit()
    from scripts.environments import continue_in_full

    continue_in_full()
# Last: numl_serving is the installed one, which has its native library.
sys.path.append(str(ROOT / "envs" / "numl"))

from numl_serving.errors import ServingError

from deploy.host.command_line import Parser
from scripts.nugraph25 import nugraph25

MODELS = ("nugraph2", "nugraph3")
TRAINING_SEED, UNSEEN_SEED = 1, 2


def main() -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        prog="python3 scripts/train_demo.py",
        description="Train the demo weights on simulated events.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "dist" / "demo",
        help="model repository to write to (default: %(default)s)",
    )
    parser.add_argument(
        "--events-out", type=Path, help="also write the packaged events to this file"
    )
    parser.add_argument("--model", choices=MODELS, action="append", help="train only this model")
    parser.add_argument(
        "--events", type=int, default=500, metavar="N", help="training events (default %(default)s)"
    )
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="passes over them (default: nugraph3 12, nugraph2 6)",
    )
    parser.add_argument(
        "--unseen",
        type=int,
        default=200,
        metavar="N",
        help="unseen events for evaluation (default %(default)s)",
    )
    parser.add_argument(
        "--file", type=Path, help="train on this file's events instead of simulating them"
    )
    arguments = parser.parse_args()
    for name in ("events", "epochs", "unseen"):
        if (number := getattr(arguments, name)) is not None and number < 1:
            parser.error(f"--{name} must be at least 1")

    started = time.monotonic()

    def report(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {line}", flush=True)

    events_out = (arguments.events_out.parent,) if arguments.events_out else ()
    try:
        for folder in (arguments.out, *events_out):  # before ten minutes of work
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    # They take seconds to import, and what is wrong with the flags is told without them.
    import torch
    from numl_demo import events as packaged
    from numl_demo import hdf5, simulate
    from numl_demo.nugraph25 import lay_beside

    torch.set_num_threads(1)
    scratch = tempfile.TemporaryDirectory()
    tempfile.tempdir = scratch.name  # where PyTorch Geometric leaves files for good
    try:
        lay_beside(nugraph25())
        from numl_demo import publish, train

        if arguments.events_out:
            hdf5.write_events(arguments.events_out, packaged.packaged_events())
        if arguments.file:
            events = hdf5.read_events(arguments.file)
        else:
            events = list(simulate.simulate_events(arguments.events, TRAINING_SEED))
        unseen = list(simulate.simulate_events(arguments.unseen, UNSEEN_SEED))
        report(f"{len(events)} events for training, {len(unseen)} for evaluation")
        for name in arguments.model or MODELS:
            settings = train.SETTINGS[name]
            if arguments.epochs:
                settings = replace(settings, epochs=arguments.epochs)
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = Path(folder) / f"{name}_demo.ckpt"
                trained = train.train(name, events, checkpoint, settings, report)
                accuracy = train.evaluate(trained, unseen)
                publish.publish(trained, checkpoint, accuracy, arguments.out / name / "1")
            report(
                f"{name}: {accuracy['semantic']:.1%} of hits right on unseen events (largest "
                f"class {accuracy['semantic_largest_class']:.1%}), {trained.seconds:.0f} s of CPU"
            )
            if name == "nugraph2":
                publish.link_files(arguments.out / name / "1", arguments.out / "nugraph2_cpu" / "1")
    except (OSError, KeyError, ImportError, ServingError, simulate.SimulationError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; finished models are kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
