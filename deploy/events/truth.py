"""What really happened in an event, as far as a file holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The truth of one event; rows are its hits, in the order in which they are sent.

    Attributes:
        semantic: Class of each hit, int64 ``[hits]``; -1 is noise.
        instance: Particle of each hit, int64 ``[hits]``; -1: of none.
        event: Class of the event.
        vertex: Of the interaction, float64 ``[3]``.
    """

    semantic: NDArray[Any] | None = None
    instance: NDArray[Any] | None = None
    event: int | None = None
    vertex: NDArray[Any] | None = None
