"""What the commands share: flags, output modes, how an error ends."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.arguments import Parser as Parser
from deploy.console import Console
from deploy.deployment import Deployment
from deploy.errors import DeploymentError, KitError

Command = Callable[[argparse.Namespace, Console], int]

INTERRUPTED = 130
DEFAULT_NAME: str = Deployment.model_fields["name"].default


def make_parser(command: str, description: str, *, deployment: bool = True) -> Parser:
    """Return a parser with the flags that every command has.

    Args:
        command: The command's name.
        description: What it does.
        deployment: Whether it is about a named deployment.
    """
    parser = Parser(prog=f"python3 deploy/{command}.py", description=description)
    if deployment:
        parser.add_argument(
            "--name",
            default=DEFAULT_NAME,
            help=f"the deployment, among several on this host (default: {DEFAULT_NAME})",
        )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="answer with one JSON document")
    output.add_argument("--quiet", action="store_true", help="no progress, only the answer")
    return parser


def run(command: Command, parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parse, run ``command``, and turn what goes wrong into one line and a status.

    Returns:
        The exit status: 0, 1 for an error, 2 for wrong usage, 130 when interrupted.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = parser.parse_args(argv)
    mode = "json" if options.json else "quiet" if options.quiet else "normal"
    console = Console(mode)  # type: ignore[arg-type]
    try:
        return command(options, console)
    except DeploymentError as error:
        console.error(error)
        return 2
    except KitError as error:
        console.error(error)
        return 1
    except KeyboardInterrupt:
        console.error(interrupted())
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output went away (| head): not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        console.error(describe_os_error(error))
        return 1


def interrupted() -> KitError:
    """Return what a command that was interrupted ends with."""
    return KitError("interrupted; nothing half-made counts, repeat the command")


def describe_os_error(error: OSError) -> KitError:
    """Return a system call's failure as cause and remedy."""
    where = f"{error.filename}: " if error.filename else ""
    cause = f"{where}{error.strerror or error}"
    if error.errno == errno.ENOSPC:
        return KitError(f"disk full: {cause}", "free space there (df -h), then repeat the command")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return KitError(cause, "use folders you may write: set XDG_CACHE_HOME and XDG_STATE_HOME")
    return KitError(cause)


def assignments(values: Sequence[str] | None, flag: str) -> dict[str, Path] | None:
    """Return ``MODEL=PATH`` flags as a mapping of absolute paths.

    Raises:
        DeploymentError: If one is not of that form.
    """
    if not values:
        return None
    found: dict[str, Path] = {}
    for value in values:
        model, equals, path = value.partition("=")
        if not equals or not model or not path:
            raise DeploymentError(f"{flag} {value!r}: expected MODEL=PATH")
        found[model] = Path(path).absolute()
    return found
