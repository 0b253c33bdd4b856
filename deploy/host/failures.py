"""The table of failures, for whatever reads what a server or an engine has said.

Within a program, rows stand in order of precision: one fault often causes several messages.
"""

from __future__ import annotations

import re

from deploy.host.errors import LaunchError
from deploy.host.failure_rows import APPTAINER, DOCKER, GENERAL, TRITON, TRITON_LAST, Row

TABLE: tuple[Row, ...] = (*TRITON, *DOCKER, *APPTAINER, *GENERAL, *TRITON_LAST)

# After these a server may keep running, but will never serve what was asked for.
_HOPELESS = (
    "failed to load '",
    "failed to start ",
    "error while loading shared libraries",
    "Poll failed for model directory",
)
_COMPLAINT = re.compile(
    r"(?:FATAL|ERROR)\s*:\s+(?!\s|while executing starter|container cleanup failed)"
    r"(?P<reason>[^\n]+)"
)


def diagnose(text: str) -> LaunchError | None:
    """Return the error that the table finds in a program's output, or None."""
    for pattern, cause, remedy in TABLE:
        match = re.search(pattern, text)
        if match is not None:
            groups = {name: (value or "").strip() for name, value in match.groupdict().items()}
            whole = match[0].strip()
            return LaunchError(cause.format(whole, **groups), remedy.format(whole, **groups))
    return None


def is_hopeless(text: str) -> bool:
    """Return whether a server's output says that waiting for it is pointless."""
    return any(words in text for words in _HOPELESS)


def last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" |+-\n")]
    return lines[-1] if lines else "it said nothing"


def apptainer_complaint(said: str) -> str:
    """Return what Apptainer says went wrong; its last line only says that something did."""
    found = _COMPLAINT.search(said)
    lines = [line for line in said.splitlines() if line.strip()]
    return found["reason"] if found is not None else lines[-1] if lines else "it says nothing"
