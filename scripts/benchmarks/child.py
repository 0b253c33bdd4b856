"""A worker process in the execution environment: one line of JSON in, one answer out."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.environment.environment import Environment
from deploy.host.errors import KitError
from deploy.host.paths import ENVIRONMENT_SOURCE

# The benchmark's own package comes last: the one that is measured is the environment's.
_RUN = (
    "import importlib, sys; sys.path.append(sys.argv.pop(1)); "
    "raise SystemExit(importlib.import_module(sys.argv.pop(1)).main())"
)


class Child:
    """The process; whoever starts it closes it.

    It runs ``main`` of ``module``, which begins with a line that says it is ready. torch may write
    to ``scratch``.
    """

    def __init__(
        self,
        environment: Environment,
        module: str,
        arguments: Sequence[str],
        *,
        scratch: Path,
        cores: set[int] | None = None,
    ) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        # Removed when it is closed: only what went wrong at last is of interest.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        # Where NuGraph's own code lets torch and PyTorch Geometric leave files for good.
        left = {"TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"), "TMPDIR": str(scratch)}
        self._process = subprocess.Popen(
            [
                str(environment.python),
                "-P",
                "-c",
                _RUN,
                str(ENVIRONMENT_SOURCE),
                module,
                *arguments,
            ],
            env={**kept, **left, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        if cores is not None:
            os.sched_setaffinity(self._process.pid, cores)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, command: dict[str, Any]) -> None:
        """Send it a command; :meth:`read` returns the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its last words say why

    def read(self) -> dict[str, Any]:
        """Return its next answer; KitError if it has ended or failed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            words = self._errors.read().strip().splitlines()
            raise KitError(
                f"the measuring process has exited: {words[-1] if words else 'no output'}"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise KitError(answer["error"])
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
