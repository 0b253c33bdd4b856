"""Stop a deployment and remove what it leaves behind."""

import argparse
from functools import partial

from deploy.deployment.state import DeploymentFolder, known_deployments, starting_deployments
from deploy.engines.choose import engine_named
from deploy.engines.farm import known_farms, read_farm, stop_farm
from deploy.engines.server import end_process
from deploy.host.cli import Parser, make_parser, run
from deploy.host.console import Console
from deploy.host.paths import DEFAULT_NAME


def parser() -> Parser:
    flags = make_parser("down", __doc__)
    flags.add_argument(
        "--all",
        action="store_true",
        help="stop every deployment of this user on this host, and batch jobs",
    )
    return flags


def _down(options: argparse.Namespace, console: Console) -> int:
    names = {options.name}
    if options.all:
        names = {*known_deployments(), *starting_deployments(), *known_farms()}
    stopped = []
    for name in sorted(names):
        farm = read_farm(name)
        if farm is not None:
            with console.step(f"stop the jobs of {name}"):
                stop_farm(farm)
            stopped.append(name)
            continue
        folder = DeploymentFolder(name)
        starter = folder.starter()
        if starter is not None:
            with console.step(f"end the start of {name}"):
                end_process(starter)  # it takes down what it has made
            stopped.append(name)
        state = folder.state_here()
        if state is None and starter is not None:
            continue
        if state is None:
            if name != DEFAULT_NAME and not folder.path.exists():
                folder.require_state()  # a mistyped name: the message lists those there are
            # Stopping twice is not an error.
            console.say(f"deployment {name} is not running")
            continue
        with console.step(f"stop {name}"):
            engine_named(state.engine).stop(folder, state)
        stopped += [name] * (starter is None)
    console.answer({"ok": True, "stopped": stopped})
    return 0


main = partial(run, _down, parser)
