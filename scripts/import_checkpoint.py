#!/usr/bin/env python3
"""Turn a training checkpoint into model files that a server reads.

Nothing that the checkpoint names is executed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[0] = str(CHECKOUT)

from deploy.host.bootstrap import ensure_kit

ensure_kit()
# The checkout's own sources can judge a command line and a checkpoint; only the import itself
# needs the native library, and an environment, which takes a while to make.
SOURCES = str(CHECKOUT / "envs" / "numl")
sys.path.append(SOURCES)

import numl_serving
from numl_serving.checkpoint import check_regular, read_checkpoint
from numl_serving.errors import ServingError
from numl_serving.generations import HEADS

from deploy.host.cli import carry_out, end_in_order
from deploy.host.command_line import Parser
from deploy.host.console import Console
from deploy.host.errors import KitError
from numl_formats.card import KINDS

if TYPE_CHECKING:
    from numl_serving.importer import Report

CLASS_HEADS = [row.name for row in HEADS if row.named_classes]
FILES = {
    "checkpoint": "give the .ckpt file that was trained",
    "norm": "give --norm the processed HDF5 file of the training, JSON or npz",
    "event": "give --event a golden.npz",
}


def names(text: str) -> tuple[str, ...]:
    """Split a list at its commas."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of names: separate them by commas"
        )
    return found


def factors(text: str) -> tuple[float, float]:
    """Read the factors of wire and time."""
    try:
        wire, time = map(float, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not two numbers: give WIRE,TIME, such as 0.3,0.055"
        ) from None
    return wire, time


def require_files(options: argparse.Namespace) -> None:
    """Check what can be checked of the files that are given, in a moment.

    Raises:
        ServingError: One of them cannot be used.
    """
    for name, remedy in FILES.items():
        path: Path | None = getattr(options, name)
        if path is None:
            continue
        try:
            check_regular(path)
            path.open("rb").close()
        except OSError as error:
            raise ServingError(f"{path}: {error.strerror}: {remedy}") from None
    read_checkpoint(options.checkpoint)
    present = next(path for path in (options.out, *options.out.parents) if path.exists())
    if not present.is_dir() or not os.access(present, os.W_OK):
        raise ServingError(f"{present}: not a folder that you can write to: give --out another one")


def parser() -> Parser:
    """Make the parser of the command line."""
    command = Parser(
        prog="python3 scripts/import_checkpoint.py", description=__doc__.splitlines()[0]
    )
    command.add_argument("checkpoint", type=Path, help="checkpoint of Lightning or torch.save")
    command.add_argument("--model", required=True, choices=list(KINDS))
    command.add_argument(
        "--norm",
        type=Path,
        metavar="FILE",
        help="feature normalisation: the training's processed HDF5 file, JSON or npz; "
        "networks of nugraph 25.4 have their own",
    )
    command.add_argument(
        "--planes", type=names, metavar="A,B,..", help="wire planes, in the order of their numbers"
    )
    command.add_argument(
        "--features",
        type=names,
        metavar="A,B,..",
        help="hit features in the network's order: wire_position, time_position, "
        "and columns of the hit table",
    )
    command.add_argument(
        "--position-scale",
        type=factors,
        metavar="WIRE,TIME",
        help="factors of the graph's positions (pynuml's first generation: 0.3,0.055; second: 1,1)",
    )
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="output folder (default: dist/models/<model>)"
    )
    for head in CLASS_HEADS:
        command.add_argument(
            f"--{head}-classes", type=names, metavar="A,B,..", help=f"names of the {head} classes"
        )
    command.add_argument(
        "--event",
        type=Path,
        metavar="FILE.npz",
        help="golden file whose event gets a golden answer from these weights "
        "(default: that of DIR's own, else one made up)",
    )
    command.add_argument(
        "--spacepoint-positions",
        action="store_true",
        help="the training had spacepoint positions: requests may carry them",
    )
    command.add_argument(
        "--description", default="", help="a one-line description for the model card"
    )
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    return command


def use_installed() -> None:
    """Import the rest of ``numl_serving`` as it is installed, with its native library.

    The environment for serving is made if need be.
    """
    from scripts.environments import add_serving

    add_serving()
    sys.path.remove(SOURCES)
    spec = PathFinder.find_spec("numl_serving")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("numl_serving is not installed in the environment for serving")
    numl_serving.__path__ = spec.submodule_search_locations


def lines(report: Report) -> list[str]:
    """Return the report for people."""
    card, network = report.card, report.card.network
    widths = {"hit": network.hit_width, "nexus": network.nexus_width, "event": network.event_width}
    rows = [
        ("network", f"{network.kind}, generation {network.generation}"),
        ("parameters", f"{report.parameters:,}"),
        ("iterations", str(network.iterations)),
        ("widths", ", ".join(f"{name} {width}" for name, width in widths.items() if width)),
        ("planes", ", ".join(card.planes)),
        ("hit features", ", ".join(card.hit_features)),
        ("position scale", ", ".join(f"{factor:g}" for factor in card.position_scale)),
        *(
            (f"head {head.name}", ", ".join(head.classes or (f"{head.width}",)))
            for head in card.heads
        ),
        ("checkpoint", ", ".join(f"{k} {v}" for k, v in report.facts.items()) or "no facts"),
        ("ignored weights", ", ".join(report.ignored_weights) or "none"),
        ("ignored globals", ", ".join(report.ignored_globals) or "none"),
        *(("note", note) for note in report.notes),
        *(("written", str(path)) for path in report.files),
    ]
    return [f"{name:<18} {value}" for name, value in rows]


def run(options: argparse.Namespace, console: Console) -> int:
    """Import the checkpoint and print the report; returns the exit code."""
    try:
        require_files(options)
        use_installed()
        from numl_serving.importer import Request, import_checkpoint

        report = import_checkpoint(
            Request(
                checkpoint=options.checkpoint,
                architecture=options.model,
                out=options.out,
                norm=options.norm,
                planes=options.planes,
                features=options.features,
                position_scale=options.position_scale,
                classes={
                    head: given
                    for head in CLASS_HEADS
                    if (given := getattr(options, f"{head}_classes")) is not None
                },
                event=options.event,
                spacepoint_positions=options.spacepoint_positions,
                description=options.description,
            )
        )
    except ServingError as error:
        raise KitError(str(error)) from None
    if options.json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        for line in lines(report):
            console.line(line)
    return 0


def main() -> int:
    """Run the command; returns the exit code."""
    options = parser().parse_args()
    options.out = (options.out or CHECKOUT / "dist" / "models" / options.model).absolute()
    # A path need not be text.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    console = Console()
    end_in_order(signal.SIGTERM, signal.SIGHUP)
    return carry_out(lambda: run(options, console), console)


if __name__ == "__main__":
    sys.exit(main())
