"""List the releases at a destination, and say which one serves."""

import argparse
import dataclasses
from contextlib import suppress
from functools import partial
from pathlib import Path

from deploy.artefacts.keys import UNVERIFIED, read_signer
from deploy.host.cli import Parser, make_parser, run
from deploy.host.command_line import as_address, as_seconds
from deploy.host.console import Console
from deploy.host.errors import DeploymentError
from deploy.host.room import size
from deploy.publishing.destination import parse_destination
from deploy.publishing.place import Entry, Listing, Look
from deploy.publishing.places import place_at
from deploy.publishing.watch import PlaceWatch

_WATCH_S = 300.0
_METRICS = ("127.0.0.1", 9465)


def parser() -> Parser:
    flags = make_parser("published", __doc__, deployment=False)
    flags.add_argument("destination", metavar="DEST", help="as for publish")
    flags.add_argument("--url", help="also ask this server which versions it serves")
    signed = "accept only what is signed with this cosign public key, and is not older than before"
    flags.add_argument("--verify", type=Path, metavar="KEY", help=signed)
    check = "read every file of every release, and list what the kit has not published"
    flags.add_argument("--check", action="store_true", help=check)
    watch = f"look again every SECONDS ({_WATCH_S:g}) until interrupted, for Prometheus"
    flags.add_argument(
        "--watch", type=as_seconds, nargs="?", const=_WATCH_S, metavar="SECONDS", help=watch
    )
    exported = f"where --watch exports what it finds (default: {_METRICS[0]}:{_METRICS[1]})"
    flags.add_argument("--metrics", type=as_address, metavar="[ADDRESS:]PORT", help=exported)
    return flags


def _published(options: argparse.Namespace, console: Console) -> int:
    verify = read_signer(options.verify) if options.verify is not None else None
    destination = parse_destination(options.destination)

    def look() -> Listing:
        return place_at(destination).listing(Look(options.url, verify, options.check))

    if options.metrics is not None and options.watch is None:
        raise DeploymentError("--metrics needs --watch: use both or neither")
    if options.watch is not None:
        if options.json:
            raise DeploymentError(
                "--watch never ends, but --json prints one document: leave one out"
            )
        watch = PlaceWatch(options.destination, look, options.watch, console.say)
        with suppress(KeyboardInterrupt):  # or SIGTERM: a watch has no other end
            watch.run(*(options.metrics or _METRICS))
        return 0
    listing = look()
    rows = [
        [_release(entry), entry.created, entry.revision[:12], entry.what, size(entry.bytes)]
        for entry in listing.entries
    ]
    verified = verify is not None and not listing.problems
    if rows:
        title = f"published in {options.destination}"
        console.table(title, ("release", "created", "revision", "what", "size"), rows)
    else:
        console.line(f"nothing is published in {options.destination}")
    for note in listing.notes:
        console.line(note)
    if rows and verify is None:
        console.line(f"{UNVERIFIED}: no key is given (--verify)")
    elif rows and verified:
        number = f": statement {listing.sequence}" if listing.sequence is not None else ""
        console.line(f"signed by {verify}{number}")
    for problem in listing.problems:
        console.line(f"problem: {problem}")
    console.answer(
        {
            "ok": not listing.problems,
            "verified": verified,
            "sequence": listing.sequence,
            "releases": [dataclasses.asdict(entry) for entry in listing.entries],
            "problems": listing.problems,
            "notes": listing.notes,
        }
    )
    return 1 if listing.problems else 0


def _release(entry: Entry) -> str:
    if entry.damaged:
        return f"{entry.release} damaged"
    return f"{entry.release} serves" if entry.serving else entry.release


main = partial(run, _published, parser)
