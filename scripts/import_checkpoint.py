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
from numl_serving.importer import Report, Request, import_checkpoint, reads_positions
from numl_serving.modelcard import ARCHITECTURES

from deploy.arguments import Parser


def names(text: str) -> tuple[str, ...]:
    """Split a list at its commas."""
    return tuple(part.strip() for part in text.split(","))


def parser() -> Parser:
    """Make the parser of the command line."""
    command = Parser(
        prog="python3 scripts/import_checkpoint.py", description=__doc__.splitlines()[0]
    )
    command.add_argument("checkpoint", type=Path, help="checkpoint of Lightning or torch.save")
    command.add_argument("--model", required=True, choices=list(ARCHITECTURES))
    command.add_argument(
        "--norm",
        type=Path,
        metavar="FILE",
        help="feature normalisation: the training's processed HDF5 file, JSON or npz",
    )
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="where to (default: dist/models/<model>)"
    )
    command.add_argument("--semantic-classes", type=names, metavar="A,B,..")
    command.add_argument("--event-classes", type=names, metavar="A,B,..")
    command.add_argument(
        "--event",
        type=Path,
        metavar="FILE.npz",
        help="golden file whose event gets a golden answer from these weights "
        "(default: the demo event)",
    )
    command.add_argument(
        "--spacepoint-positions",
        action="store_true",
        help="the training had spacepoint positions: the server asks for them",
    )
    command.add_argument("--description", default="", help="one line for the model card")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    return command


def text(report: Report) -> str:
    """Return the report for people."""
    card = report.card
    rows = [
        ("architecture", f"{card.architecture}, variant {card.variant}"),
        ("parameters", f"{report.parameters:,}"),
        ("sizes", ", ".join(f"{name} {size}" for name, size in card.hyperparameters.items())),
        ("heads", ", ".join(card.heads)),
        ("semantic classes", ", ".join(card.semantic_classes)),
        ("event classes", ", ".join(card.event_classes or ("none",))),
        ("reads positions", "yes" if reads_positions(card) else "no"),
        ("checkpoint", ", ".join(f"{k} {v}" for k, v in report.facts.items()) or "no facts"),
        ("ignored weights", ", ".join(report.ignored_weights) or "none"),
        ("ignored globals", ", ".join(report.ignored_globals) or "none"),
        *(("note", note) for note in report.notes),
        *(("written", str(path)) for path in report.files),
    ]
    return "\n".join(f"{name:<17} {value}" for name, value in rows)


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
                semantic_classes=options.semantic_classes,
                event_classes=options.event_classes,
                # A server is checked with it when it starts: any event will do.
                event=options.event
                or CHECKOUT / "model_repository" / options.model / "1" / "golden.npz",
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
