"""Make what a launch needs, without starting anything: Triton, environment, checks."""

import argparse
from functools import partial

from deploy.checks.launch import check_given, check_room
from deploy.commands.up import fetch_triton, prepared, with_own_models
from deploy.deployment.deployment import load_deployment
from deploy.deployment.options import add_deployment_options, overrides
from deploy.deployment.state import DeploymentFolder
from deploy.engines.choose import engine_to_prepare
from deploy.engines.resolved import Resolved
from deploy.environment.environment import plan_environment
from deploy.host.cli import Parser, make_parser, run
from deploy.host.console import Console


def parser() -> Parser:
    flags = make_parser(
        "prepare",
        "Make what a launch needs, and what the command shown by up --dry-run needs, without "
        "starting anything. Print the environment's folder or, for a container, that of the staged "
        "model repository. Without --engine it prepares for engine local.",
    )
    add_deployment_options(flags)
    torch = "the environment with torch and NuGraph's own packages, for training and tests"
    flags.add_argument("--full", action="store_true", help=f"also make {torch}; print its folder")
    return flags


def _prepare(options: argparse.Namespace, console: Console) -> int:
    resolved = Resolved.of(load_deployment(options.file, overrides(options)))
    deployment = resolved.deployment
    fetch_triton(deployment, console)
    check_given(resolved)
    engine = with_own_models(engine_to_prepare(resolved))
    check_room(engine)
    folder = DeploymentFolder(deployment.name)
    full = plan_environment("cpu") if options.full else None
    with console.step("prepare") as say:
        if full is not None:  # first: its Python does for the other, too
            full.make(say)
        engine = prepared(engine, say)
        with folder.taking_turns():
            if folder.state() is None:
                engine.lay_out(folder)
            else:
                say(f"deployment {folder.name} exists: its model repository is left alone")
    environment = full or (None if engine.contained else engine.environment_here)
    answer = {"environment": str(environment.folder)} if environment is not None else {}
    answer["repository"] = str(folder.repository)
    console.line(next(iter(answer.values())))
    console.answer({"ok": True, **answer})
    return 0


main = partial(run, _prepare, parser)
