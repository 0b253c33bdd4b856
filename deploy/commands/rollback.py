"""Go back to a release that served before, in a bucket or folder."""

import argparse
from functools import partial
from pathlib import Path

from deploy.host.cli import Parser, make_parser, run
from deploy.host.command_line import as_days
from deploy.host.console import Console
from deploy.publishing.destination import parse_destination
from deploy.publishing.place import Signing
from deploy.publishing.places import place_at


def parser() -> Parser:
    flags = make_parser("rollback", __doc__, deployment=False)
    add = flags.add_argument
    add("destination", metavar="DEST", help="as for publish")
    add("--to", metavar="RELEASE", help="default: the one that served before")
    sign = "sign it, with the private key that the releases are signed with"
    add("--sign", type=Path, metavar="KEY", help=sign)
    valid = "with --sign: days that servers accept it (default: as what serves now)"
    add("--valid-for", type=as_days, metavar="DAYS", help=valid)
    add("--dry-run", action="store_true", help="show what would be done, and do nothing")
    return flags


def _rollback(options: argparse.Namespace, console: Console) -> int:
    place = place_at(parse_destination(options.destination))
    signing = Signing(options.sign, options.valid_for)
    outcome = place.rollback(options.to, signing, dry_run=options.dry_run)
    for line in outcome.lines:
        console.line(line)
    answer = {"ok": True, "dry_run": options.dry_run, "release": outcome.release}
    console.answer({**answer, **outcome.facts, "changed": outcome.changed})
    return 0


main = partial(run, _rollback, parser)
