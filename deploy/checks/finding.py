"""What a check found: a row of doctor's table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from deploy.errors import KitError, LaunchError

Level = Literal["ok", "warning", "problem"]


class Fix(Protocol):
    """Mends a finding: removes what certainly belongs to nobody alive, and nothing else."""

    def apply(self) -> str:
        """Look again, then mend it.

        Returns:
            What was done, in one line.

        Raises:
            KitError: If it is no longer what was found, or cannot be mended.
        """


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: ``problem``: something does not work, or will not. ``warning``: it works, and a
            person should know.
        subject: What was looked at, in a word or two.
        detail: What is so, in one line.
        remedy: What to do, in one line; None if there is nothing to do.
        fix: Mends it; None if only a person can.
    """

    level: Level
    subject: str
    detail: str
    remedy: str | None = None
    fix: Fix | None = None


def ok(subject: str, detail: str) -> Finding:
    """Return a finding of something that is as it should be."""
    return Finding("ok", subject, detail)


def wrong(subject: str, error: KitError, level: Level = "problem") -> Finding:
    """Return what an error says, as a finding."""
    return Finding(level, subject, error.cause, error.remedy)


def refuse(findings: Iterable[Finding]) -> None:
    """Raise the first problem among ``findings``; warnings pass.

    Raises:
        LaunchError: With its detail and its remedy.
    """
    for finding in findings:
        if finding.level == "problem":
            raise LaunchError(finding.detail, finding.remedy)
