"""A row of the table of failures."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Of the causes that a launch with ports of its own choice mends by choosing others.
PORT_TAKEN = "was taken by another program while"


@dataclass(frozen=True)
class Failure:
    """A row of the table.

    Attributes:
        pattern: Searched in a program's output.
        cause: What is wrong, in one line; ``{name}`` stands for the pattern's group of that
            name, ``{0}`` for all that it matches.
        remedy: What to do, in one line, with the same in it.
    """

    pattern: re.Pattern[str]
    cause: str
    remedy: str


def row(pattern: str, cause: str, remedy: str) -> Failure:
    """Return a row; ``pattern`` is a regular expression."""
    return Failure(re.compile(pattern), cause, remedy)
