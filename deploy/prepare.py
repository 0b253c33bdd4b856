"""Make what a launch needs, without starting anything: Triton, environment, checks."""

from __future__ import annotations

if __package__ in (None, ""):
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from deploy.bootstrap import ensure_kit

    ensure_kit()

import argparse
from collections.abc import Sequence
from pathlib import Path

from deploy.checks.launch import check_given, check_room, check_shown_folders
from deploy.cli import Parser, make_parser, run
from deploy.console import Console, Say
from deploy.deployment import Deployment, load_deployment
from deploy.engines.base import Engine
from deploy.engines.choose import engine_named
from deploy.engines.site import kits_flavour
from deploy.environment.standard import standard_environment
from deploy.options import add_deployment_options, overrides
from deploy.state import DeploymentFolder
from deploy.tls.files import check_server_files


def parser() -> Parser:
    """Return the command's parser."""
    flags = make_parser(
        "prepare",
        "Make what a launch needs, and what the command of up --dry-run needs. Print the "
        "environment's folder, or for a container the staged model repository. "
        "The engine auto is local here.",
    )
    add_deployment_options(flags)
    flags.add_argument(
        "--full",
        action="store_true",
        help="also make the environment with torch and NuGraph's own packages, for training and "
        "tests, and print its folder",
    )
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run(_prepare, parser(), argv)


def _prepare(options: argparse.Namespace, console: Console) -> int:
    deployment = load_deployment(options.file, overrides(options))
    check_shown_folders()
    check_given(deployment)
    if deployment.tls is not None:
        check_server_files(deployment.tls)
    # Not the first that can start at once, as for up: those need little to be made.
    engine = engine_named("local" if deployment.engine == "auto" else deployment.engine)
    check_room(deployment, engine.name)
    folder = DeploymentFolder(deployment.name)
    with console.step("prepare") as say:
        engine.prepare(deployment=deployment, say=say)
        _lay_out(engine, deployment, folder, say)
        made = _environment(deployment, engine, full=options.full, say=say)
    console.line(str(made or folder.repository))
    answer = {"environment": str(made)} if made is not None else {}
    console.answer({"ok": True, **answer, "repository": str(folder.repository)})
    return 0


def _environment(deployment: Deployment, engine: Engine, *, full: bool, say: Say) -> Path | None:
    """Return the folder of the environment that is asked for, if there is one."""
    if full:
        return standard_environment("cpu").ensure(say).folder
    if engine.name == "local":
        return standard_environment(kits_flavour(deployment)).environment.folder
    return None


def _lay_out(engine: Engine, deployment: Deployment, folder: DeploymentFolder, say: Say) -> None:
    """Put into the deployment's folder what a server that is started by hand finds there."""
    with folder.taking_turns():
        if folder.state() is not None:
            say(f"deployment {folder.name} is there: its model repository and key are left alone")
            return
        engine.lay_out(deployment=deployment, folder=folder)


if __name__ == "__main__":
    raise SystemExit(main())
