"""What a check found: an item of doctor's report."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from deploy.host.errors import KitError, LaunchError

Level = Literal["ok", "warning", "problem"]
_LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True)
class Finding:
    """The result of one check: despite a warning, things work; with a problem, they do not.

    ``fix`` checks again, removes what certainly belongs to no live process, and says in one line
    what it did; KitError if it cannot.
    """

    level: Level
    subject: str
    detail: str
    remedy: str | None = None
    fix: Callable[[], str] | None = None


def ok(subject: str, detail: str) -> Finding:
    return Finding("ok", subject, detail)


def wrong(subject: str, error: KitError, level: Level = "problem") -> Finding:
    return Finding(level, subject, error.cause, error.remedy)


def distinct(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, each cause once: at its worst level, in its first position."""
    kept: dict[object, Finding] = {}
    for number, finding in enumerate(findings):
        # Each fix is needed.
        key = finding.detail if finding.fix is None else number
        other = kept.get(key)
        if other is None or _worth(finding) > _worth(other):
            kept[key] = finding
    return list(kept.values())


def _worth(finding: Finding) -> tuple[int, bool]:
    return _LEVELS.index(finding.level), finding.remedy is not None


def refuse(findings: Iterable[Finding]) -> None:
    """Raise the first problem among ``findings`` as LaunchError; warnings pass."""
    for finding in findings:
        if finding.level == "problem":
            raise LaunchError(finding.detail, finding.remedy)
