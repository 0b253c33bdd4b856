"""A command's output: rich on a terminal, plain lines elsewhere, JSON on request."""

from __future__ import annotations

import json
import os
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TextIO

from deploy.host.command_line import for_this_user
from deploy.host.errors import KitError

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

Mode = Literal["normal", "quiet", "json"]
Say = Callable[[str], None]
Advance = Callable[[int, int, str], None]

# Control and format characters (which change the writing direction), line and paragraph ends.
_STEERING = ("Cc", "Cf", "Zl", "Zp")
_PROGRESS_SECONDS = 10.0


class Console:
    """One command's output: progress to standard error, the result to standard output."""

    def __init__(self, mode: Mode = "normal") -> None:
        self.mode = mode

    @cached_property
    def _out(self) -> RichConsole:
        return _plain_console(stderr=False)

    @cached_property
    def _err(self) -> RichConsole:
        return _plain_console(stderr=True)

    def say(self, text: str) -> None:
        if self.mode == "normal":
            _tell(text)

    @contextmanager
    def step(self, title: str) -> Iterator[Say]:
        """Show that a step runs and, at its end, how long it took; yield a way to show details."""
        started = time.monotonic()
        if self.mode != "normal":
            yield lambda _detail: None
            return
        if self._err.is_terminal:
            from rich.text import Text

            with self._err.status(Text(_harmless(title))) as status:
                yield lambda detail: status.update(Text(_harmless(f"{title}: {detail}")))
        else:
            _tell(f"{title} ...")
            yield lambda detail: _tell(f"  {detail}")
        _tell(f"{title}: {time.monotonic() - started:.1f} s")

    @contextmanager
    def progress(self, what: str) -> Iterator[Advance]:
        """Show progress, as a bar on a terminal; yield a function of done, total and a remark."""
        if self.mode == "normal" and self._err.is_terminal:
            from rich.progress import MofNCompleteColumn, Progress

            columns = (*Progress.get_default_columns(), MofNCompleteColumn())
            with Progress(*columns, console=self._err) as bar:
                task = bar.add_task(what, total=None)
                yield lambda done, total, _remark: bar.update(task, completed=done, total=total)
            return
        last = time.monotonic()

        def line(done: int, total: int, remark: str) -> None:
            nonlocal last
            if time.monotonic() - last >= _PROGRESS_SECONDS:
                last = time.monotonic()
                self.say(f"{done} of {total} {what}, {remark}")

        yield line

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if self.mode == "json":
            return
        if self._out.is_terminal:
            from rich.table import Table

            table = Table(title=_harmless(title), title_justify="left")
            for column in columns:
                table.add_column(_harmless(column))
            for row in rows:
                table.add_row(*map(_harmless, row))
            self._out.print(table)
            return
        widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
        self.line(title)
        for row in (columns, *rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.line("  " + "  ".join(cells).rstrip())

    def line(self, text: str) -> None:
        """Print a line of the result, unless in JSON mode; on a terminal, controls are escaped."""
        if self.mode != "json":
            _write(sys.stdout, text)

    def text(self, text: str) -> None:
        """Print a result of several lines, such as a file, as :meth:`line` does."""
        for line in text.removesuffix("\n").split("\n"):
            self.line(line)

    def log_line(self, line: bytes) -> None:
        """Print a log line, given without its newline, like :meth:`line` but byte for byte."""
        if self.mode == "json":
            return
        if sys.stdout.isatty():
            _write(sys.stdout, line.decode(errors="backslashreplace"))
            return
        sys.stdout.flush()
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()

    def answer(self, document: Any) -> None:
        """Print the result as JSON, in JSON mode only."""
        if self.mode == "json":
            sys.stdout.write(json.dumps(document, indent=2) + "\n")

    def error(self, error: KitError) -> None:
        remedy = for_this_user(error.remedy)
        _tell(f"error: {error.cause}")
        if remedy:
            _tell(f"  try: {remedy}")
        self.answer({"ok": False, "error": error.cause, "remedy": remedy})


def as_time(time: datetime) -> str:
    """Return a time in UTC as lists and messages have it."""
    return f"{time:%Y-%m-%d %H:%M} UTC"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number and what it counts, as in ``1 event`` and ``2 events``."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def _plain_console(*, stderr: bool) -> RichConsole:
    from rich.console import Console as RichConsole  # not imported for JSON output

    return RichConsole(stderr=stderr, emoji=False, highlight=False, markup=False, soft_wrap=True)


def _tell(text: str) -> None:
    """Print to standard error; a closed pipe does not stop the command."""
    try:
        _write(sys.stderr, text)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _write(stream: TextIO, text: str) -> None:
    # rich would replace tabs and drop carriage returns.
    print(_harmless(text) if stream.isatty() else text, file=stream, flush=True)


def _harmless(text: str) -> str:
    """Return ``text`` with everything that would control a terminal, except tabs, escaped."""
    return "".join(
        character.encode("unicode_escape").decode()
        if character != "\t" and unicodedata.category(character) in _STEERING
        else character
        for character in text
    )
