"""How long the start of each model instance took, phase by phase, read from a server's log.

``numl_serving.startup`` writes these lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PHASES = ("process", "interpreter", "imports", "weights", "warm-up")
"""From the server's start until the instance's process runs; until the first line of
``numl_serving``; until all is imported; until the weights are loaded; until the golden event is
answered."""

_LINE = re.compile(
    r"\b(?P<instance>[\w.-]+) ready (?P<whole>[\d.]+) s after its server's start: "
    + ", ".join(rf"{phase} (?P<{phase.replace('-', '_')}>-?[\d.]+)" for phase in PHASES)
)


@dataclass(frozen=True, slots=True)
class InstanceStart:
    """The start of one model instance.

    Attributes:
        instance: Its name, as in ``nugraph3_0_1``.
        seconds: From its server's start until it was ready.
        phases: The seconds of each of `PHASES`.
    """

    instance: str
    seconds: float
    phases: tuple[float, ...]


def slowest(starts: Sequence[InstanceStart]) -> str:
    """Return, in one line, how long the instance took that was ready last, phase by phase.

    Args:
        starts: At least one.
    """
    last = max(starts, key=lambda start: start.seconds)
    phases = zip(PHASES, last.phases, strict=True)
    told = ", ".join(f"{name} {seconds:.2f}" for name, seconds in phases)
    return f"of these, {last.instance} took {last.seconds:.2f} s: {told}"


def starts_since(log: Path, start: int) -> tuple[InstanceStart, ...]:
    """Return the starts that a log's file tells of, without those of earlier servers.

    Args:
        log: The file.
        start: Bytes in it that earlier servers have written.
    """
    return read_starts(log.read_bytes()[start:].decode(errors="replace"))


def read_starts(log: str) -> tuple[InstanceStart, ...]:
    """Return the starts that a server's log tells of, in its order."""
    return tuple(
        InstanceStart(
            instance=found["instance"],
            seconds=float(found["whole"]),
            phases=tuple(float(found[phase.replace("-", "_")]) for phase in PHASES),
        )
        for found in _LINE.finditer(log)
    )
