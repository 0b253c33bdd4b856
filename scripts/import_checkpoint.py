#!/usr/bin/env python3
"""Turn a training checkpoint into model files that a server reads.

Nothing that the checkpoint names is executed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[0] = str(CHECKOUT)

from deploy.bootstrap import ensure_serving

ensure_serving()

from numl_serving.errors import ServingError
from numl_serving.generations import HEADS
from numl_serving.importer import Report, Request, import_checkpoint
from numl_serving.modelcard import KINDS

from deploy.arguments import Parser

CLASS_HEADS = [row.name for row in HEADS if row.named_classes]


def names(text: str) -> tuple[str, ...]:
    """Split a list at its commas."""
    return tuple(part.strip() for part in text.split(","))


def factors(text: str) -> tuple[float, float]:
    """Read the factors of wire and time."""
    wire, time = map(float, text.split(","))
    return wire, time


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
        "--out", type=Path, metavar="DIR", help="where to (default: dist/models/<model>)"
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
    command.add_argument("--description", default="", help="one line for the model card")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    return command


def text(report: Report) -> str:
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
    return "\n".join(f"{name:<18} {value}" for name, value in rows)


def main() -> int:
    """Run the command; returns the exit code."""
    options = parser().parse_args()
    try:
        report = import_checkpoint(
            Request(
                checkpoint=options.checkpoint,
                architecture=options.model,
                out=options.out or CHECKOUT / "dist" / "models" / options.model,
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
    except (ServingError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report.as_dict(), indent=2) if options.json else text(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
