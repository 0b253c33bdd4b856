"""List the releases at a destination, and say which one serves."""

import argparse
import dataclasses
from functools import partial

from deploy.host.cli import Parser, make_parser, run
from deploy.host.console import Console
from deploy.host.room import size
from deploy.publishing.destination import parse_destination
from deploy.publishing.place import place_at


def parser() -> Parser:
    flags = make_parser("published", __doc__, deployment=False)
    flags.add_argument("destination", metavar="DEST", help="as for publish")
    flags.add_argument("--url", help="also ask this server which versions it serves")
    return flags


def _published(options: argparse.Namespace, console: Console) -> int:
    listing = place_at(parse_destination(options.destination)).listing(options.url)
    rows = [
        [
            f"{entry.release}{' serves' if entry.serving else ''}",
            entry.created,
            entry.revision[:12],
            entry.what,
            size(entry.bytes),
        ]
        for entry in listing.entries
    ]
    if rows:
        title = f"published in {options.destination}"
        console.table(title, ("release", "created", "revision", "what", "size"), rows)
    else:
        console.line(f"nothing is published in {options.destination}")
    for problem in listing.problems:
        console.line(f"problem: {problem}")
    console.answer(
        {
            "ok": not listing.problems,
            "releases": [dataclasses.asdict(entry) for entry in listing.entries],
            "problems": listing.problems,
        }
    )
    return 1 if listing.problems else 0


main = partial(run, _published, parser)
