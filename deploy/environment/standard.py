"""The kit's own execution environments: each one's lock, interpreter, place in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deploy.console import Say
from deploy.environment.install import (
    MARKER,
    Environment,
    ensure_environment,
    plan_environment,
)
from deploy.environment.interpreter import Interpreter, find_interpreter
from deploy.environment.lock import Flavour, Lock, read_lock
from deploy.paths import ENVIRONMENT_SOURCE, cache_folder


@dataclass(frozen=True)
class StandardEnvironment:
    """What makes up the environment, made or not yet made.

    Attributes:
        lock: What is in it.
        interpreter: What it runs on.
        packages: Folder of its lower layer, which holds the locked packages.
        environment: Where it is.
    """

    lock: Lock
    interpreter: Interpreter
    packages: Path
    environment: Environment

    @property
    def is_made(self) -> bool:
        """Whether it is there."""
        return (self.environment.folder / MARKER).exists()

    def ensure(self, say: Say) -> Environment:
        """Return the environment, made if it is not there yet."""
        return ensure_environment(
            cache_folder(), self.lock, self.interpreter, ENVIRONMENT_SOURCE, say
        )


def standard_environment(flavour: Flavour) -> StandardEnvironment:
    """Return the environment of ``flavour``.

    Raises:
        EnvironmentSetupError: If the lock or an interpreter for it is missing.
    """
    lock = read_lock(ENVIRONMENT_SOURCE / "locks", flavour)
    interpreter = find_interpreter(lock.python)
    packages, environment = plan_environment(cache_folder(), lock, interpreter, ENVIRONMENT_SOURCE)
    return StandardEnvironment(lock, interpreter, packages, environment)
