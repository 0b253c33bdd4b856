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
