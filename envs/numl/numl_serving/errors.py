"""The exceptions of the package: every message is one line that says what is wrong and where."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class ServingError(Exception):
    """Base of all errors that this package raises on purpose."""


class EventError(ServingError):
    """An event that cannot be used; names the table, the column and the first offending row."""


class CheckpointError(ServingError):
    """A training checkpoint that cannot be read or holds no usable weights."""


class ModelFilesError(ServingError):
    """Model files (weights, model card, golden event) that are missing or do not fit together."""


class NetworkError(ServingError):
    """Something unforeseen while an event was answered.

    Args:
        message: One line.
        details: The traceback, as text.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class DeviceLostError(ServingError):
    """The GPU gives nothing but errors until this process ends."""


def attempt(
    function: Callable[Arguments, Result], *given: Arguments.args, **named: Arguments.kwargs
) -> Result | EventError | NetworkError:
    """Return what a function returns, or its error.

    The error is a new one, without the traceback: that would keep alive whatever the function
    had, as all tensors of a batch that did not fit into memory.
    """
    try:
        return function(*given, **named)
    except EventError as error:
        return EventError(str(error))
    except Exception as error:
        details = "".join(traceback.format_exception(error))
        return NetworkError(one_line(error), details)


def one_line(error: BaseException) -> str:
    """Return an error's type and the first line of its message."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
