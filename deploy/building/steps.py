"""The steps of a build: shown while they run, timed for the manifest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.console import Console, Say


class Steps:
    """Runs the steps of one build and keeps how long each took.

    Args:
        console: Where progress is shown.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by step, in the order they ran; a failed step is not among them."""
        return dict(self._seconds)

    @contextmanager
    def step(self, name: str, folder: Path) -> Iterator[Say]:
        """Run one step.

        Args:
            name: Its name.
            folder: Where it writes: named when a disk is full and the system names no file.

        Yields:
            A function that shows what the step is doing now.
        """
        started = time.monotonic()
        with self._console.step(name) as say:
            try:
                yield say
            except OSError as error:
                if error.errno is not None and error.filename is None:
                    error.filename = str(folder)
                raise
        self._seconds[name] = round(time.monotonic() - started, 1)
