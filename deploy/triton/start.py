"""How long the start of each model instance took, phase by phase, read from a server's log.

``numl_serving.startup`` writes these lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# From the server's start until the instance's process runs, until the first line of
# numl_serving, until all is imported, the weights are loaded, the reference event is answered.
PHASES = ("process", "interpreter", "imports", "weights", "warm-up")

_LINE = re.compile(
    r"\b(?P<instance>[\w.-]+) ready (?P<whole>[\d.]+) s after its server's start: "
    + ", ".join(rf"{phase} (?P<{phase.replace('-', '_')}>-?[\d.]+)" for phase in PHASES)
)


@dataclass(frozen=True, slots=True)
class InstanceStart:
    """The start of an instance (``nugraph3_0_1``): seconds from its server's start, in phases."""

    instance: str
    seconds: float
    phases: tuple[float, ...]


def slowest(starts: Sequence[InstanceStart]) -> str:
    """Return, in one line, how long the instance took that was ready last, phase by phase."""
    last = max(starts, key=lambda start: start.seconds)
    phases = zip(PHASES, last.phases, strict=True)
    told = ", ".join(f"{name} {seconds:.2f}" for name, seconds in phases)
    return f"of these, {last.instance} took {last.seconds:.2f} s: {told}"


def read_starts(log: str) -> tuple[InstanceStart, ...]:
    return tuple(
        InstanceStart(
            instance=found["instance"],
            seconds=float(found["whole"]),
            phases=tuple(float(found[phase.replace("-", "_")]) for phase in PHASES),
        )
        for found in _LINE.finditer(log)
    )
