"""The parser of every command line: its complaints are one line, and say where help is.

Standard library only: scripts that run in the execution environment use it too, which
lacks the kit's own packages.
"""

from __future__ import annotations

import argparse


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line and says where help is."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Print ``message`` and end with status 2."""
        self.exit(2, f"error: {message}\n  try: {self.prog} --help\n")


def as_seconds(text: str) -> float:
    """Return ``text`` as a number of seconds, for ``add_argument``.

    Raises:
        argparse.ArgumentTypeError: It is none, or not above 0.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value
