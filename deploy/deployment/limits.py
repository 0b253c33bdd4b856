"""What models accept, and how many instances they have for it."""

from typing import Annotated

from pydantic import BaseModel

from deploy.deployment.fields import number
from numl_formats.limits import HITS, WAIT_S, WAITING

FEWEST_BOUNDED = 3
"""With fewer instances of a model, Triton's bounded queue stands still at times: docs/load.md."""
_MOST_WAITING, _MOST_WAITING_ON_A_GPU = 16, 64


class Limits(BaseModel, frozen=True, extra="forbid"):
    """What a model of the kit accepts; the rest is refused at once.

    Attributes:
        waiting: The most requests that wait for each instance of a model; 0: any number; None:
            what it can compute while they wait, 16 on CPUs and 64 on a GPU.
        wait_s: The longest that a request waits (s); 0: as long as its client does.
        hits: The most hits of an event.
    """

    waiting: Annotated[int, number(*WAITING)] | None = None
    wait_s: Annotated[float, number(*WAIT_S, float)] = 1.0
    hits: Annotated[int, number(*HITS)] = 25_000

    @property
    def bound_the_queue(self) -> bool:
        return self.waiting != 0 or self.wait_s != 0

    def most_waiting(self, *, gpu: bool) -> int:
        default = _MOST_WAITING_ON_A_GPU if gpu else _MOST_WAITING
        return default if self.waiting is None else self.waiting

    def instances(self, asked: int) -> int:
        return max(asked, FEWEST_BOUNDED) if self.bound_the_queue else asked
