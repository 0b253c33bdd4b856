"""Show a deployment's logs, even after it has stopped."""

from __future__ import annotations

import argparse
import os
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from deploy.deployment.state import DeploymentFolder
from deploy.host.cli import Parser, make_parser, run
from deploy.host.command_line import quote
from deploy.host.console import Console
from deploy.host.errors import DeploymentError, NotRunningError

_PAUSE_S = 0.2


def parser() -> Parser:
    flags = make_parser("logs", __doc__)
    flags.add_argument("--supervisor", action="store_true", help="the supervisor's log instead")
    tail = "last lines (default: 50)"
    flags.add_argument("--tail", type=_lines, default=50, metavar="N", help=tail)
    flags.add_argument("--follow", action="store_true", help="show new lines until interrupted")
    return flags


def _lines(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines")
    return int(text)


def _logs(options: argparse.Namespace, console: Console) -> int:
    if options.follow and options.json:
        cause = "--follow never ends, but --json prints one document: leave one out"
        raise DeploymentError(cause)
    folder = DeploymentFolder(options.name)
    path = folder.supervisor_log if options.supervisor else folder.log
    if not path.exists():
        from deploy.engines.farm import read_farm  # takes long, and few need it

        if read_farm(options.name) is not None:
            cause = f"{options.name} runs as batch jobs, each of which has a log of its own"
            raise NotRunningError(cause, f"ls {quote(str(folder.path))}/jobs/*/*.log")
        cause = f"deployment {options.name!r} has no log"
        raise NotRunningError(cause, f"numlkit up --name {options.name}")
    content = path.read_bytes()
    if options.follow:
        # A line that is being written is shown when it is whole.
        content = content[: content.rfind(b"\n") + 1]
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    lines = lines[-options.tail :] if options.tail > 0 else []
    for line in lines:
        console.log_line(line)
    said = [line.decode(errors="replace") for line in lines]
    console.answer({"ok": True, "log": str(path), "lines": said})
    if options.follow:
        _follow(path, len(content), console)
    return 0


def _follow(path: Path, offset: int, console: Console) -> None:
    with suppress(KeyboardInterrupt):
        while True:
            with suppress(FileNotFoundError), path.open("rb") as stream:
                stream.seek(offset)
                _show_lines(path, stream, console)
            offset = 0
            time.sleep(_PAUSE_S)


def _show_lines(path: Path, stream: BinaryIO, console: Console) -> None:
    """Show each line once it is whole, until a server that is started again begins anew."""
    begun = b""
    while True:
        begun += stream.readline()
        if begun.endswith(b"\n"):
            console.log_line(begun.removesuffix(b"\n"))
            begun = b""
        elif _begins_anew(path, stream):
            break
        else:
            time.sleep(_PAUSE_S)
    if begun:
        console.log_line(begun)


def _begins_anew(path: Path, stream: BinaryIO) -> bool:
    """Return whether the log has been emptied, or is another file."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    same = os.path.samestat(now, os.fstat(stream.fileno()))
    return not same or now.st_size < stream.tell()


main = partial(run, _logs, parser)
