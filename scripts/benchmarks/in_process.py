"""Measure in a process of its own, pinned to one core, in the execution environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deploy.environment.environment import Environment
from scripts.benchmarks.cells import Floats
from scripts.benchmarks.child import Child


class InProcess:
    """The worker, pinned to a core; whoever starts it closes it. Its ``facts`` are torch's.

    ``models`` are folders with ``model.json`` and weights, ``events`` is a file that ``numl_bench``
    has written; torch may make a folder beside it.
    """

    def __init__(
        self,
        environment: Environment,
        models: Mapping[str, Path],
        events: Path,
        *,
        core: int,
    ) -> None:
        arguments = [str(events), *(f"{name}={folder}" for name, folder in models.items())]
        self._child = Child(
            environment, "numl_bench.worker", arguments, scratch=events.parent, cores={core}
        )
        try:
            started = self._child.read()
        except BaseException:
            self.close()
            raise
        self.facts: dict[str, Any] = started["facts"]

    def measure(
        self, model: str, events: str, seconds: float
    ) -> tuple[dict[str, Floats], list[str]]:
        """Time every path of a model on a set of events.

        Returns ``[rounds, events, 4]`` as in `PathTimes` by path, and what answers had against the
        reference's, one line each.
        """
        self._child.tell({"model": model, "events": events, "seconds": seconds})
        answer = self._child.read()
        times = {name: np.array(rounds) for name, rounds in answer["times"].items()}
        return times, answer["differences"]

    def close(self) -> None:
        self._child.close()
