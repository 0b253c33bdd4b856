"""What was measured for one thing, round by round."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass
class Series:
    """What was measured for one thing, round by round.

    Attributes:
        seconds: How long it took.
        bytes: How large the result is; None if there is none.
    """

    seconds: list[float] = field(default_factory=list)
    bytes: int | None = None

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return statistics.median(self.seconds)


Results = dict[str, Series]
