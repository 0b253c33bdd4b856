"""Measure in a process of its own, pinned to one core, in the execution environment."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from deploy.environment.install import Environment
from deploy.errors import KitError
from deploy.paths import ENVIRONMENT_SOURCE
from deploy.speed.cells import Floats

# The benchmark's own package comes last: the one that is measured is the environment's.
_WORKER = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from numl_bench.worker import main; raise SystemExit(main())"
)


class InProcess:
    """The worker; a context manager.

    Args:
        environment: The environment it runs in.
        models: Folders with ``model.json`` and weights, by name.
        events: File of events, as ``numl_bench`` writes it; torch may make a folder beside it.
        compiled: Folder of compiled networks; None measures without.
        core: The core it is pinned to.

    Attributes:
        facts: What it says of torch.
        models: What it says of each model.

    Raises:
        KitError: If it does not start.
    """

    def __init__(
        self,
        environment: Environment,
        models: Mapping[str, Path],
        events: Path,
        *,
        compiled: Path | None,
        core: int,
    ) -> None:
        command = [
            str(environment.python),
            "-P",
            "-c",
            _WORKER,
            str(ENVIRONMENT_SOURCE),
            str(events),
        ]
        command += [f"{name}={folder}" for name, folder in models.items()]
        if compiled is not None:
            command += ["--compiled", str(compiled)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        # Removed when it is closed: only what went wrong at last is of interest.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        # NuGraph's own code lets torch make this folder, by default in /tmp and for good.
        inductor = {"TORCHINDUCTOR_CACHE_DIR": str(events.with_name("inductor"))}
        self._process = subprocess.Popen(
            command,
            env={**kept, **inductor, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        os.sched_setaffinity(self._process.pid, {core})
        try:
            started = self._read()
        except BaseException:
            self.close()
            raise
        self.facts: dict[str, Any] = started["facts"]
        self.models: dict[str, dict[str, Any]] = started["models"]

    def __enter__(self) -> InProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def measure(
        self, model: str, events: str, seconds: float
    ) -> tuple[dict[str, Floats], list[str]]:
        """Time every path of a model on a set of events.

        Returns:
            By path, ``[rounds, events, 4]`` as in `PathTimes`, and what answers had against the
            reference's, one line each.

        Raises:
            KitError: If the worker has ended.
        """
        assert self._process.stdin is not None
        command = {"model": model, "events": events, "seconds": seconds}
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its last words say why
        answer = self._read()
        times = {name: np.array(rounds) for name, rounds in answer["times"].items()}
        return times, answer["differences"]

    def close(self) -> None:
        """End the worker."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            words = self._errors.read().strip().splitlines()
            raise KitError(
                f"the process that measures has ended: {words[-1] if words else 'without a word'}"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise KitError(answer["error"])
        return answer
