"""What a command shows: rich on a terminal, plain lines elsewhere, JSON when asked."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from rich.console import Console as RichConsole
from rich.table import Table
from rich.text import Text

from deploy.errors import KitError

Mode = Literal["normal", "quiet", "json"]
Say = Callable[[str], None]


class Console:
    """One command's output.

    Progress goes to standard error, answers to standard output, so that an
    answer can be piped.

    Args:
        mode: ``quiet`` shows answers and errors only; ``json`` makes the answer
            one JSON document and keeps progress off standard output.
    """

    def __init__(self, mode: Mode = "normal") -> None:
        self.mode = mode
        self._out = RichConsole(highlight=False, markup=False, soft_wrap=True)
        self._err = RichConsole(stderr=True, highlight=False, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Show a line of progress."""
        if self.mode == "normal":
            self._err.print(text)

    @contextmanager
    def step(self, title: str) -> Iterator[Say]:
        """Show that a long step runs and, at its end, how long it took.

        Yields:
            A function that shows what the step is doing now.
        """
        started = time.monotonic()
        if self.mode != "normal":
            yield lambda _detail: None
            return
        if self._err.is_terminal:
            with self._err.status(Text(title)) as status:
                yield lambda detail: status.update(Text(f"{title}: {detail}"))
        else:
            self._err.print(f"{title} ...")
            yield lambda detail: self._err.print(f"  {detail}")
        self._err.print(f"{title}: {time.monotonic() - started:.1f} s")

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table; nothing in JSON mode, where :meth:`answer` speaks."""
        if self.mode == "json":
            return
        if self._out.is_terminal:
            table = Table(title=title, title_justify="left")
            for column in columns:
                table.add_column(column)
            for row in rows:
                table.add_row(*row)
            self._out.print(table)
            return
        widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
        self._out.print(title)
        for row in (columns, *rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self._out.print("  " + "  ".join(cells).rstrip())

    def line(self, text: str) -> None:
        """Print a line of the answer; nothing in JSON mode."""
        if self.mode != "json":
            self._out.print(text)

    def answer(self, document: Any) -> None:
        """Print the machine-readable answer, in JSON mode only."""
        if self.mode == "json":
            sys.stdout.write(json.dumps(document, indent=2) + "\n")

    def error(self, error: KitError) -> None:
        """Print a cause, and the remedy on the next line."""
        self._err.print(f"error: {error.cause}")
        if error.remedy:
            self._err.print(f"  try: {error.remedy}")
        self.answer({"ok": False, "error": error.cause, "remedy": error.remedy})
