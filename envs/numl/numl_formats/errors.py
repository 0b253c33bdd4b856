"""The package's exceptions. Every message is one line: what is wrong, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

Refusal = Literal["format", "signature", "line", "replay", "expired"]
"""Why a statement is refused: it cannot be read; nobody trusted signed it; it is of another line of
releases; a newer one, or another one with its number, was seen; it is too old."""


class FormatError(Exception):
    """A file is not what its format says."""


class NewerFormatError(FormatError):
    """A file is of a format that this release of the kit does not read."""


class StatementError(FormatError):
    """A release statement is refused: what serves goes on serving.

    Attributes:
        reason: The check that refused it.
    """

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def check_format(written: Any, reads: Sequence[int], writer: str) -> None:
    """Raise an error unless ``written``, a file's ``format``, is one of ``reads``, lowest first.

    Args:
        writer: What writes such files, as in "what published it".

    Raises:
        NewerFormatError: A newer kit wrote it.
        FormatError: A kit before the first release wrote it.
    """
    if type(written) is int and written < reads[0]:
        raise FormatError(f"format {written}, which this release of the kit no longer reads")
    if type(written) is not int or written not in reads:
        formats = f"format{'s' if len(reads) > 1 else ''} {' and '.join(map(str, reads))}"
        raise NewerFormatError(
            f"format {written!r}, but this release of the kit reads {formats}: "
            f"use one that is as new as {writer}"
        )
