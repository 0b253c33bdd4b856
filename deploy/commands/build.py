"""Build what a server on another machine needs: packed environment, image, .sif."""

import argparse
import re
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

from deploy.artefacts.build import Workplace, build, fetch_python, survey
from deploy.artefacts.request import TARGETS, BuildRequest
from deploy.artefacts.triton import PYTHON_ONLY, find_triton, named_by_flag
from deploy.deployment.options import TRITON_HELP
from deploy.engines.baked import site_content
from deploy.environment.lock import Flavour
from deploy.environment.sources import locked_flavour, source_named
from deploy.host.cli import Parser, end_in_order, make_parser, run
from deploy.host.console import Console, Say
from deploy.host.errors import DeploymentError
from deploy.host.paths import DIST
from deploy.triton.advisories import summary
from deploy.triton.release import DEFAULT, RELEASES, TritonRelease

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BACKEND = re.compile(r"[\w-]+")


def parser() -> Parser:
    flags = make_parser("build", __doc__, deployment=False)
    add = flags.add_argument
    add("--target", choices=(*TARGETS, "all"), help="what to build")
    flavour = (
        "serving: small, what the kit's models need on CPUs; cpu or gpu: with torch and NuGraph's "
        "own packages, for models of your own (default: serving)"
    )
    add("--flavour", choices=get_args(Flavour), default="serving", help=flavour)
    environment = (
        "pack this environment of your own models instead, with --target env: a folder with its "
        "lock, or one of the kit's by its name"
    )
    add("--environment", metavar="ENVIRONMENT", help=environment)
    base = "base image: slim, a bare Debian, or ngc, NVIDIA's Triton image (default: slim)"
    add("--base", choices=("slim", "ngc"), default="slim", help=base)
    add("--base-digest", metavar="sha256:...", help="pin the base image to this digest")
    add("--triton", metavar="RELEASE|IMAGE|PATH", default=DEFAULT, help=TRITON_HELP)
    more = "backends of its image to keep for models of your own (default: python)"
    add("--backends", metavar="NAME,...", default="python", help=more)
    add("--wheels", type=Path, metavar="DIR", help="use the wheels in DIR instead of downloading")
    python = "repack this Python (default: conda-forge's if reachable, else one found here)"
    add("--python", type=Path, metavar="PATH", help=python)
    models = "also bake the models of this repository of yours, with their environments"
    add("--models-dir", type=Path, metavar="DIR", help=models)
    wire = "also make a model repository with the packed environment, for a stock Triton image"
    add("--wire", type=Path, metavar="DIR", help=wire)
    compressor = "compressor of the .sif; gzip for hosts that cannot read zstd (default: zstd)"
    add("--compressor", choices=("zstd", "gzip"), default="zstd", help=compressor)
    add("--out", type=Path, default=DIST, metavar="DIR", help="default: dist/")
    add("--dry-run", action="store_true", help="show the plan, build nothing")
    return flags


def _build(options: argparse.Namespace, console: Console) -> int:
    end_in_order(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    request = _request(options, _triton(options, console), console.say)
    workplace = survey(request)
    if options.dry_run:
        _show(request, workplace, console)
        return 0
    made = build(request, workplace, console)
    rows = [
        [artefact.kind, artefact.name, f"{artefact.bytes / 1e6:.0f} MB", artefact.sha256[:19]]
        for artefact in made
    ]
    console.table(f"built, in {request.out}", ("artefact", "name", "size", "sha256"), rows)
    parts = [[part, f"{size / 1e6:.0f}"] for part, size in made[-1].largest.items()]
    console.table("largest parts of the environment", ("part", "MB"), parts)
    known = summary(request.triton)
    if known is not None and request.targets != ("env",):
        console.say(f"warning: {known}; NAME.vex.json lists them")
    document = [artefact.model_dump(mode="json") for artefact in made]
    console.answer({"ok": True, "out": str(request.out), "artefacts": document})
    return 0


def _triton(options: argparse.Namespace, console: Console) -> TritonRelease:
    backends = tuple(dict.fromkeys(options.backends.split(",")))
    if not all(map(_BACKEND.fullmatch, backends)):
        cause = f"--backends {options.backends!r}: expected names, with nothing but commas between"
        raise DeploymentError(cause, "--backends python,onnxruntime")
    if "python" not in backends:
        raise DeploymentError(
            f"--backends {options.backends}: without python no model of the kit runs"
        )
    name = named_by_flag(options.triton)
    if name == DEFAULT and backends == PYTHON_ONLY:
        return RELEASES[DEFAULT]
    if options.base == "ngc":
        cause = f"--base ngc is for Triton {DEFAULT}; any other is taken out of its image"
        raise DeploymentError(cause, "leave out --base ngc")
    with console.step("Triton") as say:
        return find_triton(name, say, backends=backends)


def _request(options: argparse.Namespace, triton: TritonRelease, say: Say) -> BuildRequest:
    if options.target is None:
        raise DeploymentError(f"--target is missing: {', '.join(TARGETS)} or all")
    targets = TARGETS if options.target == "all" else (options.target,)
    if options.wire is not None and "env" not in targets:
        raise DeploymentError("--wire needs --target env or all: it uses the packed environment")
    if options.base_digest is not None and not _DIGEST.fullmatch(options.base_digest):
        raise DeploymentError(f"--base-digest {options.base_digest!r}: expected sha256:<64 digits>")
    if options.base_digest is not None and targets == ("env",):
        raise DeploymentError("--base-digest needs --target image, sif or all")
    for flag, path in (("--wheels", options.wheels), ("--python", options.python)):
        if path is not None and not path.exists():
            cause = f"{flag} {path}: no such file or folder"
            raise DeploymentError(cause, f"correct it, or leave out {flag}")
    source, flavour = None, options.flavour
    if options.environment is not None:
        if targets != ("env",) or options.wire is not None or options.models_dir is not None:
            cause = "--environment is for --target env alone, without --wire or --models-dir"
            raise DeploymentError(cause)
        source = source_named(options.environment)
        flavour = locked_flavour(source, flavour)
    wheels = options.wheels.absolute() if options.wheels else None
    python = options.python.absolute() if options.python else None
    request = BuildRequest(
        targets=targets,
        flavour=flavour,
        source=source,
        base=options.base,
        base_digest=options.base_digest,
        triton=triton,
        wheels=wheels,
        python=python,
        out=options.out.absolute(),
        wire=options.wire.absolute() if options.wire else None,
        compressor=options.compressor,
    )
    if options.models_dir is None:
        return request
    if not options.dry_run:
        fetch_python(request, say)  # before the environments are planned, which take it then
    site = site_content(
        options.models_dir.absolute(), flavour=flavour, named=options.triton, triton=triton,
        say=say, wheels=wheels, python=python,
    )  # fmt: skip
    return replace(request, site=site)


def _show(request: BuildRequest, workplace: Workplace, console: Console) -> None:
    names = {
        "env": str(request.out / "numl-....tar.gz"),
        "image": request.image_tag,
        "sif": str(request.sif),
    }
    rows = [[target, names[target]] for target in request.targets]
    if workplace.environment is not None:
        rows.append(["Python", workplace.environment.interpreter.version])
    if workplace.route is not None:
        why = f" ({workplace.without_docker})" if workplace.without_docker else ""
        rows.append(["builds with", f"{workplace.route}{why}"])
    if request.wire is not None:
        rows.append(["wired repository", str(request.wire)])
    room = [[f"room for {need.purpose}", f"{need.bytes / 1e9:.1f} GB in {need.folder}"]
            for need in workplace.needs]  # fmt: skip
    problems = [[problem.cause, problem.remedy or ""] for problem in workplace.problems]
    console.table("plan", ("", ""), [*rows, *room])
    if problems:
        console.table("to fix first", ("problem", "try"), problems)
    document = [{"error": cause, "remedy": remedy or None} for cause, remedy in problems]
    console.answer({"ok": True, "plan": dict(rows), "room": dict(room), "problems": document})


main = partial(run, _build, parser)
