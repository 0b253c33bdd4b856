"""What all commands share: flags, output modes, exit statuses."""

import argparse
import errno
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from deploy.host.command_line import INTERRUPTED as INTERRUPTED
from deploy.host.command_line import Parser as Parser
from deploy.host.command_line import as_name, quote
from deploy.host.console import Console
from deploy.host.errors import DeploymentError, Ended, KitError
from deploy.host.paths import DEFAULT_NAME, cache_folder, state_folder

Command = Callable[[argparse.Namespace, Console], int]


def make_parser(command: str, description: str, *, deployment: bool = True) -> Parser:
    parser = Parser(prog=f"numlkit {command}", description=description)
    if deployment:
        name = f"the deployment's name (default: {DEFAULT_NAME})"
        parser.add_argument("--name", type=as_name, default=DEFAULT_NAME, help=name)
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON document")
    output.add_argument("--quiet", action="store_true", help="print no progress, only the result")
    return parser


def run(command: Command, parser: Callable[[], Parser], argv: Sequence[str] | None = None) -> int:
    """Run ``command``; return 0, 1 for an error, 2 for incorrect usage, 128 and a signal's number.

    Like Ctrl-C, SIGTERM and SIGHUP end it in order: programs that it runs, such as pip, would go on
    without it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _keep_strangers_out()
    options = parser().parse_args(argv)
    options.words = sys.argv[1:] if argv is None else argv
    mode = "json" if options.json else "quiet" if options.quiet else "normal"
    console = Console(mode)  # type: ignore[arg-type]
    end_in_order(signal.SIGTERM, signal.SIGHUP)
    return carry_out(lambda: command(options, console), console)


def _keep_strangers_out() -> None:
    """Have nothing that is made be for all to write, as a umask of 0 has it: it may be run later.

    One that lets the user's group write stays as it is.
    """
    mask = os.umask(0o022)
    if mask & 0o002:
        os.umask(mask)


def carry_out(work: Callable[[], int], console: Console) -> int:
    """Return the exit status of ``work``; an error is told in its place, as :func:`run` says."""
    try:
        return work()
    except DeploymentError as error:
        console.error(error)
        return 2
    except KitError as error:
        console.error(error)
        return 1
    except KeyboardInterrupt as interrupt:
        console.error(interrupted())
        return 128 + interrupt.number if isinstance(interrupt, Ended) else INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has gone (| head): not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        console.error(describe_os_error(error))
        return 1


def end_in_order(*signals: int) -> None:
    """Have the first of these signals end the command as Ctrl-C does, and the next ones ignored.

    So nothing interrupts the clean-up: a shell that exits sends SIGHUP twice. What is ignored
    already, as under nohup, stays ignored.
    """

    def end(number: int, _frame: object) -> NoReturn:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise Ended(number)

    for each in signals:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, end)


def interrupted() -> KitError:
    return KitError("interrupted", "run the command again")


_AGAIN = "then run the command again"
_NO_ROOM = {
    errno.ENOSPC: f"free space there (df -h), {_AGAIN}",
    errno.EDQUOT: f"free space there, or have your quota raised (quota -s), {_AGAIN}",
    errno.EFBIG: f"raise the limit of file sizes (ulimit -f), {_AGAIN}",
}
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def describe_os_error(error: OSError) -> KitError:
    error = _first_of(error)
    no_room = _NO_ROOM.get(error.errno or 0)
    # Of a copy, the first name is what was read.
    name = (no_room and error.filename2) or error.filename
    where = f"{name}: " if name else ""
    cause = f"{where}{error.strerror or error}"
    if error.errno == errno.ENOSPC:
        cause = f"disk full: {cause}"
    remedy = no_room
    if error.errno in _FORBIDDEN:
        remedy = "check its owner and permissions, and those of its folder (ls -ld)"
    ours = "set XDG_CACHE_HOME and XDG_STATE_HOME to folders"
    if error.errno in _FORBIDDEN and _is_ours(name):
        remedy = f"{ours} that you can write to"
    if error.errno in _NO_LOCKS and _is_ours(name):
        remedy = f"{ours} of a disk with locks, as a local one"
    return KitError(cause, remedy)


def _first_of(error: OSError) -> OSError:
    """Return the first error of a folder's copy: ``shutil`` goes on, and keeps only their texts."""
    match error.args:
        case ([(source, target, str(text)), *_],) if isinstance(error, shutil.Error):
            found = re.match(r"\[Errno (\d+)\]", text)
            if found is None:
                return OSError(text)
            number, at = int(found[1]), target if repr(str(target)) in text else source
            return OSError(number, os.strerror(number), str(at), None, str(target))
    return error


def _is_ours(name: object) -> bool:
    """Return whether it is in the cache or state folder, or above, such as a home."""
    if not isinstance(name, str) or not (place := Path(name)).is_absolute():  # or a file's number
        return False
    ours = (cache_folder(), state_folder())
    return any(place.is_relative_to(one) or one.is_relative_to(place) for one in ours)


def check_picture(path: Path) -> None:
    """Refuse a place where no PNG can be written, before anything is done for it."""
    if not path.parent.is_dir():
        folder = str(path.parent)
        raise DeploymentError(f"no such folder: {folder}", f"mkdir -p {quote(folder)}")
    if path.suffix != ".png" or path.is_dir():
        raise DeploymentError(f"--plot {path}: a PNG is drawn", "--plot with a file called *.png")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        cause = f"--plot {path}: this user may not write to {path.parent}"
        raise DeploymentError(cause, "choose another --plot")


def assignments(values: Sequence[str] | None, flag: str) -> dict[str, Path] | None:
    """Return ``MODEL=PATH`` values as a mapping of absolute paths."""
    if not values:
        return None
    found: dict[str, Path] = {}
    for value in values:
        model, equals, path = value.partition("=")
        if not equals or not model or not path:
            raise DeploymentError(f"{flag} {value!r}: expected MODEL=PATH")
        found[model] = Path(path).absolute()
    return found
