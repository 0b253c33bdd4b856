"""Run checks side by side: none stops another, and none keeps a person waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from deploy.checks.finding import Finding, wrong
from deploy.errors import KitError

# Each takes less than a second where everything answers; a dead network disk never does.
DEADLINE_S = 10.0


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes:
        subject: What it looks at, for what goes wrong with the check itself.
        run: Looks at it.
    """

    subject: str
    run: Callable[[], Iterable[Finding]]


def examine(checks: Sequence[Check], deadline: float = DEADLINE_S) -> list[Finding]:
    """Return what the checks find, in their order.

    Args:
        checks: What to look at.
        deadline: Seconds after which those that have not ended are given up.
    """
    answers: list[list[Finding] | None] = [None] * len(checks)

    def look(number: int) -> None:
        answers[number] = _findings(checks[number])

    # Threads that do not keep the process from ending: one may hang for ever.
    threads = [
        threading.Thread(target=look, args=(number,), daemon=True) for number in range(len(checks))
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + deadline
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    found: list[Finding] = []
    for check, answer in zip(checks, answers, strict=True):
        if answer is None:
            detail = f"no answer within {deadline:.0f} s"
            remedy = "a network disk or a service that does not answer: see mount, and dmesg"
            found.append(Finding("problem", check.subject, detail, remedy))
        else:
            found += answer
    return found


def _findings(check: Check) -> list[Finding]:
    try:
        return list(check.run())
    except KitError as error:
        return [wrong(check.subject, error)]
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return [Finding("problem", check.subject, f"{where}{error.strerror or error}")]
    except Exception as error:
        # What nobody has foreseen in one check is no reason to keep the others' findings back.
        detail = f"the check itself failed: {type(error).__name__}: {error}"
        return [Finding("problem", check.subject, " ".join(detail.split()))]
