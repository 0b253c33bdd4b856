"""Publish what was built and verified, for servers on other hosts."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from deploy.artefacts.keys import read_signer
from deploy.artefacts.triton import named_by_flag
from deploy.checks.launch import check_given
from deploy.deployment.deployment import load_deployment
from deploy.deployment.options import add_model_options, as_number, model_overrides
from deploy.engines.resolved import Resolved
from deploy.host.cli import Parser, make_parser, run
from deploy.host.command_line import as_days
from deploy.host.console import Console
from deploy.host.errors import DeploymentError
from deploy.host.paths import DIST
from deploy.publishing.destination import parse_destination
from deploy.publishing.place import Order
from deploy.publishing.places import place_at


def parser() -> Parser:
    flags = make_parser(
        "publish",
        "Publish what was built and verified: models to a bucket, from which servers load them, an "
        "image or a .sif to a registry, or a .sif to a folder that other hosts see. The new "
        "release serves once it is complete; until then, and after a failure, the old one keeps "
        "serving.",
        deployment=False,
    )
    add = flags.add_argument
    destination = (
        "s3://BUCKET/PREFIX, s3://https://HOST:PORT/BUCKET/PREFIX, docker://HOST/REPOSITORY[:TAG], "
        "oras://HOST/REPOSITORY[:TAG], or a folder"
    )
    add("destination", metavar="DEST", help=destination)
    add_model_options(flags)
    add(
        "--instances", type=as_number, help="with --with-code: instances of each model (default: 2)"
    )
    triton = "the Triton that numlkit build was given, or its release (default: 24.10)"
    add("--triton", metavar="RELEASE|IMAGE|PATH", help=triton)
    sif = "the .sif to publish to a folder or oras:// (default: the one numlkit build made)"
    add("--image", type=Path, metavar="FILE.sif", help=sif)
    built, default = "the folder that numlkit build wrote to (default: dist/)", DIST
    add("--from", dest="built", type=Path, default=default, metavar="DIR", help=built)
    sign = (
        "sign the release with a cosign private key, whose password is in COSIGN_PASSWORD, and in "
        "a registry attach its SBOM and provenance"
    )
    add("--sign", type=Path, metavar="KEY", help=sign)
    verify = "publish only what was signed when it was built, with this public key"
    add("--verify", type=Path, metavar="KEY", help=verify)
    valid = "with --sign: days that servers accept the release; publish again to renew it"
    add("--valid-for", type=as_days, metavar="DAYS", help=valid)
    code = (
        "also publish model.py and config.pbtxt to a bucket, for a Triton that polls it by itself: "
        "whoever can write to that bucket runs code on the server"
    )
    add("--with-code", action="store_true", help=code)
    add("--sandbox", action="store_true", help="unpack the .sif into a folder, as for CVMFS")
    prune = "remove all releases except the one that serves and the one that served before it"
    add("--prune", action="store_true", help=prune)
    url = "with --prune: a server that must first answer with the new versions; repeatable"
    add("--url", action="append", default=[], help=url)
    add("--dry-run", action="store_true", help="show what would be done, and do nothing")
    return flags


def _publish(options: argparse.Namespace, console: Console) -> int:
    destination = parse_destination(options.destination)
    if options.url and not options.prune:
        raise DeploymentError("--url needs --prune")
    if options.instances is not None and not options.with_code:
        raise DeploymentError("--instances needs --with-code: servers set their own number")
    triton = named_by_flag(options.triton) if options.triton is not None else None
    given = {**model_overrides(options), "instances": options.instances, "triton": triton}
    order = Order(
        resolved=Resolved.of(load_deployment(options.file, given)),
        artefact=options.image.absolute() if options.image is not None else None,
        built=options.built.absolute(),
        sign=options.sign,
        verify=read_signer(options.verify) if options.verify is not None else None,
        sandbox=options.sandbox,
        valid_for=options.valid_for,
        with_code=options.with_code,
        dry_run=options.dry_run,
    )
    check_given(order.resolved)
    place = place_at(destination)
    if options.prune:
        place.check_prune(tuple(options.url))
    outcome = place.publish(order, console)
    answer: dict[str, Any] = {"ok": True, "dry_run": options.dry_run, "release": outcome.release}
    for line in outcome.lines:
        console.line(line)
    answer |= {**outcome.facts, "changed": outcome.changed}
    if options.prune:
        pruned = place.prune(tuple(options.url), order.signing, console, dry_run=options.dry_run)
        for line in pruned.lines:
            console.line(line)
        answer |= {**pruned.facts, "changed": outcome.changed or pruned.changed}
    console.answer(answer)
    return 0


main = partial(run, _publish, parser)
