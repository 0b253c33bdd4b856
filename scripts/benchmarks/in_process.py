"""Measure in separate processes, pinned to one core, in the execution environment."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from deploy.environment.environment import Environment
from scripts.benchmarks.cells import Floats
from scripts.benchmarks.child import Child


class InProcess:
    """A worker for each model, pinned to a core; whoever starts them closes them.

    A process has one nugraph: 25.4.0, from the folder ``nugraph25``, or the environment's.
    ``models`` are folders with ``model.json`` and weights, ``events`` is a file that ``numl_bench``
    has written; torch may make a folder beside it. Their ``facts`` are torch's.
    """

    def __init__(
        self,
        environment: Environment,
        nugraph25: Path,
        models: Mapping[str, Path],
        events: Path,
        *,
        core: int,
    ) -> None:
        self.facts: dict[str, Any] = {}
        self._children: dict[str, Child] = {}
        with ExitStack() as unless_all_start:
            unless_all_start.callback(self.close)
            for name, folder in models.items():
                self._children[name] = Child(
                    environment,
                    "numl_bench.worker",
                    [str(events), str(folder), str(nugraph25)],
                    scratch=events.parent,
                    cores={core},
                )
            for child in self._children.values():
                self.facts |= child.read()["facts"]
            unless_all_start.pop_all()

    def measure(
        self, model: str, events: str, seconds: float
    ) -> tuple[dict[str, Floats], list[str]]:
        """Time every path of a model on a set of events.

        Returns ``[rounds, events, 4]`` as in `PathTimes` by path, and what answers had against the
        reference's, one line each.
        """
        child = self._children[model]
        child.tell({"events": events, "seconds": seconds})
        answer = child.read()
        times = {name: np.array(rounds) for name, rounds in answer["times"].items()}
        return times, answer["differences"]

    def close(self) -> None:
        for child in self._children.values():
            child.close()
