"""Command lines: how they are parsed and quoted, and shown in remedies.

Standard library only: scripts that run in the execution environment use it too, which
lacks the kit's own packages.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable
from datetime import timedelta
from ipaddress import ip_address

INTERRUPTED = 130  # the exit status after Ctrl-C

_SUDO = re.compile(r"(&& )?(?<![\w./-])sudo (?=\w)")


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line and says where to find help."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"error: {message}\n  try: {self.prog} --help\n")


def as_name(text: str) -> str:
    """Return a deployment's name, which is not empty, as of a script's variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name names no deployment")
    return text


def number(what: str, is_one: Callable[[float], bool]) -> Callable[[str], float]:
    """Return what reads a number for argparse; ``what`` it is, in words for one that is not."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not is_one(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return read


as_seconds = number("a number of seconds above 0", lambda value: 0 < value < 1e6)


def as_address(text: str) -> tuple[str, int]:
    """Parse ``[ADDRESS:]PORT`` into IP address (default: loopback) and port, for argparse."""
    address, _, port = text.rpartition(":")
    try:
        host = str(ip_address(address.strip("[]") or "127.0.0.1"))
    except ValueError:
        host = ""
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, or an IP address and a port")
    return host, int(port)


def count_to(most: int, *, least: int = 1) -> Callable[[str], int]:

    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return read


def as_days(text: str) -> timedelta:
    return timedelta(days=count_to(3650)(text))


def for_this_user(remedy: str | None) -> str | None:
    """Return a remedy with ``sudo COMMAND`` as this user can type it here.

    Root types the command alone; where there is no sudo, it says ``as root: COMMAND``.
    """
    if remedy is None or _SUDO.search(remedy) is None:
        return remedy
    if os.geteuid() == 0:
        return _SUDO.sub(lambda match: match[1] or "", remedy)
    if shutil.which("sudo"):
        return remedy
    # Root's shell would put its own name for $USER.
    return _SUDO.sub(lambda match: match[1] or "as root: ", re.sub(r"\$USER\b", "USER", remedy))


def quote(word: str) -> str:
    """Return ``word`` quoted for any shell, on one line; as ``$'...'`` if it is not printable."""
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))
