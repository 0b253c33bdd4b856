"""How long the start of each model instance took, phase by phase, read from a server's log.

``numl_serving.startup`` writes these lines.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# From the server's start until the instance's process runs, until the first line of
# numl_serving, until all is imported, the weights are loaded, the reference event is answered.
PHASES = ("process", "interpreter", "imports", "weights", "warm-up")

_LINE = re.compile(r"\b([\w.-]+) ready ([\d.]+) s after its server's start: (.+)")
_PHASE = re.compile(r"([\w-]+) (-?[\d.]+)")


@dataclass(frozen=True, slots=True)
class InstanceStart:
    """The start of an instance (``nugraph3_0_1``): seconds from its server's start, in phases."""

    instance: str
    seconds: float
    phases: Mapping[str, float]


def slowest(starts: Sequence[InstanceStart]) -> str:
    """Return in one line how long the last instance to get ready took, phase by phase."""
    last = max(starts, key=lambda start: start.seconds)
    told = ", ".join(f"{name} {seconds:.2f}" for name, seconds in last.phases.items())
    return f"of these, {last.instance} took {last.seconds:.2f} s: {told}"


def read_starts(log: str) -> tuple[InstanceStart, ...]:
    return tuple(
        InstanceStart(name, float(whole), {n: float(s) for n, s in _PHASE.findall(phases)})
        for name, whole, phases in _LINE.findall(log)
    )
