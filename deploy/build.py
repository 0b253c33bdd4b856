"""Build what a launch needs elsewhere: packed environment, image, .sif."""

from __future__ import annotations

if __package__ in (None, ""):
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from deploy.bootstrap import ensure_kit

    ensure_kit()

import argparse
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn, get_args

from deploy.building.request import TARGETS, BuildRequest
from deploy.building.run import Workplace, build, look_around
from deploy.cli import Parser, make_parser, run
from deploy.console import Console
from deploy.environment.lock import Flavour
from deploy.errors import DeploymentError
from deploy.paths import CHECKOUT
from deploy.server.release import RELEASES

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def parser() -> Parser:
    """Return the command's parser."""
    parser = make_parser(
        "build",
        "Build a packed environment, a derived Triton image, a .sif; everything ends in dist/.",
        deployment=False,
    )
    parser.add_argument("--target", choices=(*TARGETS, "all"), help="what to build")
    parser.add_argument(
        "--flavour",
        choices=get_args(Flavour),
        default="serving",
        help="what for: serving on CPUs, small; cpu or gpu, with NuGraph's own packages for a "
        "group's own models (default: serving)",
    )
    parser.add_argument(
        "--base",
        choices=("slim", "ngc"),
        default="slim",
        help="what the image stands on: a bare Debian, or NVIDIA's image (default: slim)",
    )
    parser.add_argument("--base-digest", metavar="sha256:...", help="the one base it must be")
    parser.add_argument(
        "--triton",
        choices=tuple(sorted(RELEASES)),
        default="24.10",
        help="NVIDIA's release (default: 24.10)",
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="take the locked wheels from here, not by network",
    )
    parser.add_argument(
        "--python",
        type=Path,
        metavar="PATH",
        help="repack this Python (default: conda-forge's where it can be reached, else one found)",
    )
    parser.add_argument(
        "--wire",
        type=Path,
        metavar="DIR",
        help="also make a model repository for a stock Triton image, with the packed environment",
    )
    parser.add_argument(
        "--compressor",
        choices=("zstd", "gzip"),
        default="zstd",
        help="of the .sif; gzip for hosts that cannot read zstd (default: zstd)",
    )
    parser.add_argument(
        "--out", type=Path, default=CHECKOUT / "dist", metavar="DIR", help="default: dist/"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be built")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run(_build, parser(), argv)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    # What cleans up is not to be interrupted by a second one.
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _build(options: argparse.Namespace, console: Console) -> int:
    # However a build is told to end, it cleans up. (nohup has the last one ignored.)
    for each in _ENDING:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _interrupt)
    request = _request(options)
    workplace = look_around(request)
    if options.dry_run:
        _show(request, workplace, console)
        return 0
    made = build(request, workplace, console)
    rows = [
        [artefact.kind, artefact.name, f"{artefact.bytes / 1e6:.0f} MB", artefact.sha256[:19]]
        for artefact in made
    ]
    console.table("built", ("what", "name", "size", "sha256"), rows)
    parts = [[part, f"{size / 1e6:.0f}"] for part, size in made[-1].largest.items()]
    console.table("largest parts of the environment", ("part", "MB"), parts)
    document = [artefact.model_dump(mode="json") for artefact in made]
    console.answer({"ok": True, "out": str(request.out), "artefacts": document})
    return 0


def _request(options: argparse.Namespace) -> BuildRequest:
    if options.target is None:
        raise DeploymentError(f"say what to build: --target {'|'.join(TARGETS)}|all")
    targets = TARGETS if options.target == "all" else (options.target,)
    if options.wire is not None and "env" not in targets:
        raise DeploymentError("--wire goes with --target env or all: it takes the packed one")
    if options.base_digest is not None and not _DIGEST.fullmatch(options.base_digest):
        raise DeploymentError(f"--base-digest {options.base_digest!r}: expected sha256:<64 digits>")
    if options.base_digest is not None and targets == ("env",):
        raise DeploymentError("--base-digest goes with --target image, sif or all")
    for flag, path in (("--wheels", options.wheels), ("--python", options.python)):
        if path is not None and not path.exists():
            raise DeploymentError(
                f"{flag} {path}: no such file or folder", f"correct it, or leave out {flag}"
            )
    return BuildRequest(
        targets=targets,
        flavour=options.flavour,
        base=options.base,
        base_digest=options.base_digest,
        triton=RELEASES[options.triton],
        wheels=options.wheels.absolute() if options.wheels else None,
        python=options.python.absolute() if options.python else None,
        out=options.out.absolute(),
        wire=options.wire.absolute() if options.wire else None,
        compressor=options.compressor,
    )


def _show(request: BuildRequest, workplace: Workplace, console: Console) -> None:
    names = {
        "env": str(request.out / "numl-....tar.gz"),
        "image": request.image_tag,
        "sif": str(request.sif),
    }
    rows = [[target, names[target]] for target in request.targets]
    if workplace.route is not None:
        why = f" ({workplace.without_docker})" if workplace.without_docker else ""
        rows.append(["builds with", f"{workplace.route}{why}"])
    if request.wire is not None:
        rows.append(["wired repository", str(request.wire)])
    room = [[f"room for {need.purpose}", f"{need.bytes / 1e9:.1f} GB in {need.folder}"]
            for need in workplace.needs]  # fmt: skip
    console.table("plan", ("", ""), [*rows, *room])
    console.answer({"ok": True, "plan": dict(rows), "room": dict(room)})


if __name__ == "__main__":
    raise SystemExit(main())
