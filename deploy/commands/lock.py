"""Lock an environment for models of your own: exact versions of all packages."""

import argparse
from functools import partial

from deploy.artefacts.triton import find_triton, named_by_flag
from deploy.environment.lock import PYTHON
from deploy.environment.locking import lock
from deploy.environment.sources import source_named
from deploy.host.cli import Parser, make_parser, run
from deploy.host.console import Console
from deploy.host.errors import DeploymentError
from deploy.host.paths import ENVIRONMENT_SOURCE
from deploy.triton.release import DEFAULT


def parser() -> Parser:
    flags = make_parser("lock", __doc__, deployment=False)
    add = flags.add_argument
    source = (
        "folder with a requirements.in, such as /site/envs/vision, or one of the kit's by its name"
    )
    add("environment", metavar="ENVIRONMENT", help=source)
    flavour = "gpu: with the default index's CUDA builds, for servers on GPUs (default: cpu)"
    add("--flavour", choices=("cpu", "gpu"), default="cpu", help=flavour)
    triton = "lock for this server's Python and numpy, named as for numlkit build (default: 24.10)"
    add("--triton", metavar="RELEASE|IMAGE|PATH", default=DEFAULT, help=triton)
    return flags


def _lock(options: argparse.Namespace, console: Console) -> int:
    source = source_named(options.environment)
    if source == ENVIRONMENT_SOURCE:
        raise DeploymentError("NuGraph's environment has several locks", "scripts/refreeze")
    triton = named_by_flag(options.triton)
    with console.step("lock") as say:
        release = find_triton(triton, say)
        files = lock(
            source,
            options.flavour,
            python=release.own_python or PYTHON,
            numpy_below=release.numpy_below,
            say=say,
        )
    for path in files:
        console.line(str(path))
    console.answer({"ok": True, "files": [str(path) for path in files]})
    return 0


main = partial(run, _lock, parser)
