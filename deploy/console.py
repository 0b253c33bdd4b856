"""What a command shows: rich on a terminal, plain lines elsewhere, JSON when asked."""

from __future__ import annotations

import json
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TextIO

from rich.console import Console as RichConsole
from rich.table import Table
from rich.text import Text

from deploy.errors import KitError

Mode = Literal["normal", "quiet", "json"]
Say = Callable[[str], None]

# Controls, formats (which turn the direction of writing) and ends of line and paragraph.
_STEERING = ("Cc", "Cf", "Zl", "Zp")


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
        self._out = _plain_console(stderr=False)
        self._err = _plain_console(stderr=True)

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
        self.line(title)
        for row in (columns, *rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.line("  " + "  ".join(cells).rstrip())

    def line(self, text: str) -> None:
        """Print a line of the answer; nothing in JSON mode.

        Piped, it is what was said, character by character. On a terminal, what would steer it
        is shown escaped.
        """
        if self.mode != "json":
            _write(sys.stdout, text)

    def log_line(self, line: bytes) -> None:
        """Print a line of a log, given without its end; nothing in JSON mode.

        Piped, it keeps every byte; on a terminal it is shown as by :meth:`line`.
        """
        if self.mode == "json":
            return
        if sys.stdout.isatty():
            self.line(line.decode(errors="backslashreplace"))
            return
        sys.stdout.flush()
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()

    def answer(self, document: Any) -> None:
        """Print the machine-readable answer, in JSON mode only."""
        if self.mode == "json":
            sys.stdout.write(json.dumps(document, indent=2) + "\n")

    def error(self, error: KitError) -> None:
        """Print a cause, and the remedy on the next line."""
        _write(sys.stderr, f"error: {error.cause}")
        if error.remedy:
            _write(sys.stderr, f"  try: {error.remedy}")
        self.answer({"ok": False, "error": error.cause, "remedy": error.remedy})


def _plain_console(*, stderr: bool) -> RichConsole:
    return RichConsole(stderr=stderr, emoji=False, highlight=False, markup=False, soft_wrap=True)


def _write(stream: TextIO, text: str) -> None:
    # Not by rich, which replaces tabs and drops carriage returns.
    print(_harmless(text) if stream.isatty() else text, file=stream, flush=True)


def _harmless(text: str) -> str:
    """Return ``text`` with what would steer a terminal, tabs aside, escaped as in Python."""
    return "".join(
        character.encode("unicode_escape").decode()
        if character != "\t" and unicodedata.category(character) in _STEERING
        else character
        for character in text
    )
