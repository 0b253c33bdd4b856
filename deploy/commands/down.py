"""Stop a deployment and remove what it leaves behind."""

import argparse
import platform
import signal
from contextlib import suppress
from functools import partial

from deploy.deployment.state import DeploymentFolder, known_deployments, starting_deployments
from deploy.engines.choose import engine_named
from deploy.engines.farm import known_farms, read_farm, stop_farm
from deploy.engines.server import end_process
from deploy.host.cli import Parser, end_in_order, make_parser, run
from deploy.host.console import Console
from deploy.host.errors import DeploymentError, KitError
from deploy.host.paths import DEFAULT_NAME


def parser() -> Parser:
    flags = make_parser("down", __doc__)
    flags.set_defaults(name=None)  # so that one given together with --all is noticed
    flags.add_argument(
        "--all",
        action="store_true",
        help="stop every deployment of this user on this host, and batch jobs",
    )
    return flags


def _down(options: argparse.Namespace, console: Console) -> int:
    end_in_order(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    names = {options.name or DEFAULT_NAME}
    if options.all:
        if options.name is not None:
            raise DeploymentError("--name and --all both choose what is stopped: leave one out")
        here = (name for name in known_deployments() if not _is_elsewhere(name))
        names = {*here, *starting_deployments(), *known_farms()}
    stopped, failed = [], list[KitError]()
    for name in sorted(names):
        try:
            if _stop(name, console):
                stopped.append(name)
        except KitError as error:  # the others are stopped first
            failed.append(error)
    for other in failed[1:]:
        console.say(f"error: {other.cause}")
    if failed:
        raise failed[0]
    console.answer({"ok": True, "stopped": stopped})
    return 0


def _is_elsewhere(name: str) -> bool:
    with suppress(DeploymentError):  # of one that cannot be read, its stop tells
        state = DeploymentFolder(name).state()
        return state is not None and state.node != platform.node()
    return False


def _stop(name: str, console: Console) -> bool:
    """Stop a farm, a start or a deployment; return whether there was one."""
    farm = read_farm(name)
    if farm is not None:
        with console.step(f"stop the jobs of {name}"):
            stop_farm(farm)
        return True
    folder = DeploymentFolder(name)
    starter = folder.starter()
    if starter is not None:
        with console.step(f"end the start of {name}"):
            end_process(starter)  # it takes down what it has made
    state = folder.state_here()
    if state is not None:
        with console.step(f"stop {name}"):
            engine_named(state.engine).stop(folder, state)
    elif starter is None:
        if name != DEFAULT_NAME and not folder.path.exists():
            folder.require_state()  # a mistyped name: the message lists those there are
        # Stopping twice is not an error.
        console.say(f"deployment {name} is not running")
    return state is not None or starter is not None


main = partial(run, _down, parser)
