"""The package's exceptions. Every message is one line: what is wrong, and where."""

from __future__ import annotations

from typing import Literal

Refusal = Literal["format", "signature", "line", "replay", "expired"]
"""Why a statement is refused: it cannot be read; nobody trusted signed it; it is of another line of
releases; a newer one, or another one with its number, was seen; it is too old."""


class FormatError(Exception):
    """A file is not what its format says."""


class StatementError(FormatError):
    """A release statement is refused: what serves goes on serving.

    Attributes:
        reason: The check that refused it.
    """

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason
