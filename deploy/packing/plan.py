"""What an environment is made of, known before anything is made."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from deploy.environment.interpreter import Interpreter, find_interpreter, given_interpreter
from deploy.environment.lock import Flavour, Lock, read_lock
from deploy.environment.serving import serving_digest
from deploy.errors import EnvironmentSetupError
from deploy.files import digest_of
from deploy.packing.channel import (
    DEFAULT_CHANNEL,
    ChannelError,
    ChannelInterpreter,
    find_in_channel,
)
from deploy.packing.cpython import identity_of
from deploy.paths import ENVIRONMENT_SOURCE, cache_folder

# The modules that decide what is in an environment; a change in them is another one.
_RECIPE = (
    "bytecode",
    "conda_package",
    "cpython",
    "elf",
    "packages",
    "prefix",
    "slimming",
    "wheel_tree",
)


@dataclass(frozen=True)
class EnvironmentBuild:
    """An environment, made or not yet made.

    Attributes:
        flavour: What it is for.
        lock: The packages in it.
        interpreter: What it runs on: of this host, or of a conda channel.
        recipe: Names how packages are made.
        digest: Names its contents: recipe, lock, interpreter, ``numl_serving``.
        source: Folder of the ``numl_serving`` distribution (``envs/numl``).
        wheels: A folder with the locked wheels, if they are not to be downloaded.
        cache: The folder for what is made on the way.
    """

    flavour: Flavour
    lock: Lock
    interpreter: Interpreter | ChannelInterpreter
    recipe: str
    digest: str
    source: Path
    wheels: Path | None
    cache: Path

    @property
    def prefix(self) -> Path:
        """Where it is, or will be."""
        return self.cache / "prefixes" / self.digest[:16]

    @property
    def packages(self) -> Path:
        """Where the packages it is installed from are made."""
        return self.cache / "packages" / self.recipe[:16]


def plan_build(
    *,
    flavour: Flavour,
    wheels: Path | None,
    python: Path | None,
    channel: str | None = None,
) -> EnvironmentBuild:
    """Decide what an environment is made of.

    The interpreter is the given one; else one from a conda channel, if it answers; else
    one of this host.

    Args:
        flavour: What it is for.
        wheels: A folder with the locked wheels; then no network is asked for anything.
        python: An interpreter of this host.
        channel: Name or URL of a conda channel that has to be used. Without it,
            conda-forge is asked but need not answer.

    Raises:
        EnvironmentSetupError: If the lock cannot be read or there is no interpreter for it.
    """
    lock = read_lock(ENVIRONMENT_SOURCE / "locks", flavour)
    if wheels is not None and not wheels.is_dir():
        raise EnvironmentSetupError(f"{wheels}: no such folder", "name a folder with wheels")
    interpreter = _choose_interpreter(lock.python, wheels, python, channel)
    recipe = digest_of(
        [Path(__file__).with_name(f"{name}.py") for name in _RECIPE], base=Path(__file__).parent
    )
    identity = (
        interpreter.identity
        if isinstance(interpreter, ChannelInterpreter)
        else identity_of(interpreter)
    )
    serving = serving_digest(ENVIRONMENT_SOURCE)
    total = hashlib.sha256("\0".join((recipe, lock.digest, identity, serving)).encode())
    return EnvironmentBuild(
        flavour=flavour,
        lock=lock,
        interpreter=interpreter,
        recipe=recipe,
        digest=total.hexdigest(),
        source=ENVIRONMENT_SOURCE,
        wheels=wheels,
        cache=cache_folder(),
    )


def _choose_interpreter(
    wanted: str, wheels: Path | None, python: Path | None, channel: str | None
) -> Interpreter | ChannelInterpreter:
    if python is not None:
        return given_interpreter(python, wanted)
    if channel is not None:
        return find_in_channel(channel, wanted)
    if wheels is None:
        try:
            return find_in_channel(DEFAULT_CHANNEL, wanted)
        except ChannelError:
            pass
    return find_interpreter(wanted)
