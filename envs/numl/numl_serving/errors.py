"""The package's exceptions. Every message is one line: what is wrong, and where."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from numl_formats.errors import FormatError, NewerFormatError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class ServingError(Exception):
    """Base class of the errors this package raises deliberately."""


class EventError(ServingError):
    """An unusable event; the message names the table, the column and the first bad row."""


class CheckpointError(ServingError):
    """A training checkpoint cannot be read or holds no usable weights."""


class ModelFilesError(ServingError):
    """Model files (weights, model card, golden event) are missing or inconsistent."""


class NetworkError(ServingError):
    """An unexpected failure while answering an event.

    Args:
        message: One line.
        details: The traceback, as text.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class DeviceLostError(ServingError):
    """The GPU returns nothing but errors until this process exits."""


@contextmanager
def of_model_files(remedy: str = ": import the checkpoint again") -> Iterator[None]:
    """Make a `ModelFilesError` of what `numl_formats` says of a file."""
    try:
        yield
    except NewerFormatError as error:
        raise ModelFilesError(str(error)) from None
    except FormatError as error:
        raise ModelFilesError(f"{error}{remedy}") from None


def attempt(
    function: Callable[Arguments, Result], *given: Arguments.args, **named: Arguments.kwargs
) -> Result | EventError | NetworkError:
    """Return a function's result, or its error.

    The error is a new object without a traceback, which would keep the function's locals alive,
    such as the tensors of a batch that did not fit into memory.
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
