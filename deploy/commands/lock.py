"""Lock an environment for models of your own: exact versions of all packages."""

import argparse
from functools import partial

from deploy.environment.locking import lock
from deploy.environment.sources import source_named
from deploy.host.cli import Parser, make_parser, run
from deploy.host.console import Console
from deploy.host.errors import DeploymentError
from deploy.host.paths import ENVIRONMENT_SOURCE
from deploy.triton.release import RELEASES


def parser() -> Parser:
    flags = make_parser("lock", __doc__, deployment=False)
    add = flags.add_argument
    source = (
        "folder with a requirements.in, such as /site/envs/vision, or one of the kit's by its name"
    )
    add("environment", metavar="ENVIRONMENT", help=source)
    flavour = "gpu: with the default index's CUDA builds, for servers on GPUs (default: cpu)"
    add("--flavour", choices=("cpu", "gpu"), default="cpu", help=flavour)
    add("--triton", choices=sorted(RELEASES), default="24.10", help="release (default: 24.10)")
    return flags


def _lock(options: argparse.Namespace, console: Console) -> int:
    source = source_named(options.environment)
    if source == ENVIRONMENT_SOURCE:
        raise DeploymentError("NuGraph's environment has several locks", "scripts/refreeze")
    numpy_below = RELEASES[options.triton].numpy_below
    with console.step("lock") as say:
        files = lock(source, options.flavour, numpy_below=numpy_below, say=say)
    for path in files:
        console.line(str(path))
    console.answer({"ok": True, "files": [str(path) for path in files]})
    return 0


main = partial(run, _lock, parser)
