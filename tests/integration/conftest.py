"""Real servers on loopback. The cache is the user's own; state goes to a scratch folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deploy.paths import CHECKOUT
from deploy.supervisor.leftovers import shared_memory_regions, shm_prefix

START_S = 120


@dataclass
class Kit:
    """Runs the kit's commands against a state folder of its own."""

    state: Path
    names: list[str] = field(default_factory=list)

    @property
    def variables(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.state)}

    def run(
        self, command: str, *flags: str, script: str = "deploy"
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, f"{script}/{command}.py", *flags],
            cwd=CHECKOUT,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=START_S + 60,
            check=False,
        )

    def json(self, command: str, *flags: str) -> dict[str, Any]:
        done = self.run(command, "--json", *flags)
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return {**answer, "status": done.returncode, "stderr": done.stderr}

    def up(self, name: str, *flags: str) -> dict[str, Any]:
        self.names.append(name)
        answer = self.json("up", "--name", name, *flags)
        assert answer["status"] == 0, answer
        return answer

    def folder(self, name: str) -> Path:
        return self.state / "numlkit" / "deployments" / name

    def leftovers(self, name: str, scratch: Iterable[str | Path] = ()) -> list[Path]:
        return leftovers(shm_prefix(self.folder(name)), scratch)

    def down(self, name: str) -> dict[str, Any]:
        return self.json("down", "--name", name)

    def close(self) -> None:
        for name in self.names:
            self.run("down", "--name", name)


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    kit = Kit(tmp_path_factory.mktemp("state"))
    yield kit
    kit.close()


@pytest.fixture(scope="session")
def demo(kit: Kit) -> dict[str, Any]:
    """A deployment of all models with the demo weights, for tests that leave it healthy."""
    return kit.up("demo")


@pytest.fixture
def single(kit: Kit) -> Iterator[dict[str, Any]]:
    """A small deployment of its own, for tests that do harm to it."""
    answer = kit.up("single", "--models", "nugraph3", "--instances", "1")
    yield answer
    kit.down("single")


def until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait until ``condition`` holds; return how long it took; fail after ``seconds``."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, f"{what}: not within {seconds} s"
        time.sleep(0.1)
    return time.monotonic() - started


def leftovers(prefix: str, scratch: Iterable[str | Path] = ()) -> list[Path]:
    """Return what a deployment has left in /dev/shm, and which scratch folders still are.

    Other servers of this user may come and go meanwhile: nothing of theirs is looked at.
    """
    regions = shared_memory_regions(prefix)
    return [*regions, *(path for path in map(Path, scratch) if path.exists())]
