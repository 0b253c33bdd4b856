"""The table of failures, for everything that reads what a server or an engine has said.

The programs' rows stand before what holds for all of them, and within a program rows stand in
order of precision, since one fault often causes several messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from deploy.failures.apptainer import APPTAINER
from deploy.failures.docker import DOCKER
from deploy.failures.general import GENERAL
from deploy.failures.row import Failure
from deploy.failures.triton import TRITON, TRITON_LAST

TABLE: tuple[Failure, ...] = (
    *TRITON,
    *DOCKER,
    *APPTAINER,
    *GENERAL,
    *TRITON_LAST,
)

# Messages after which a server that goes on running still never becomes what was asked for.
_HOPELESS = (
    "failed to load '",
    "failed to start ",
    "error while loading shared libraries",
    "Poll failed for model directory",
)


@dataclass(frozen=True)
class Diagnosis:
    """A failure recognised in what a program has said.

    Attributes:
        cause: What is wrong, in one line.
        remedy: What to do, in one line.
    """

    cause: str
    remedy: str


def diagnose(text: str) -> Diagnosis | None:
    """Return what the table makes of a program's output, or None if it says nothing."""
    for failure in TABLE:
        match = failure.pattern.search(text)
        if match is not None:
            groups = {name: (value or "").strip() for name, value in match.groupdict().items()}
            whole = match[0].strip()
            return Diagnosis(
                cause=failure.cause.format(whole, **groups),
                remedy=failure.remedy.format(whole, **groups),
            )
    return None


def is_hopeless(text: str) -> bool:
    """Return whether a server's output says that waiting for it is of no use."""
    return any(words in text for words in _HOPELESS)


def last_words(text: str) -> str:
    """Return the last line of a log that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" |+-\n")]
    return lines[-1] if lines else "it said nothing"
