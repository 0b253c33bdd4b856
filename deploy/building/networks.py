"""The compiled networks that an environment takes along to other machines.

They are compiled here, in the environment that serves without a container, which has the headers
and the compiler's own parts that a packed one does without.
"""

from __future__ import annotations

from pathlib import Path

from deploy.console import Say
from deploy.deployment import DEFAULT_MODELS
from deploy.environment.compiled import PORTABLE_LEVEL, ensure_compiled
from deploy.environment.standard import standard_environment
from deploy.errors import EnvironmentSetupError
from deploy.paths import MODEL_REPOSITORY, cache_folder
from deploy.repository.stage import VERSION


def makes_environment(flavour: str, *, offline: bool) -> bool:
    """Return whether the environment that compiles has to be made first.

    Args:
        flavour: ``cpu`` or ``gpu``.
        offline: Whether nothing may be downloaded.
    """
    if flavour != "cpu" or offline:
        return False
    try:
        return not standard_environment(flavour).packages.exists()
    except EnvironmentSetupError:
        return False


def compile_networks(flavour: str, *, offline: bool, say: Say) -> tuple[Path, ...]:
    """Compile the networks of the kit's models for any server, and for those like this one.

    Where they cannot be compiled, a line says why, and the models answer without them, slower.

    Args:
        flavour: ``cpu`` or ``gpu``; for GPUs networks are compiled where there is one: at a launch.
        offline: Whether nothing may be downloaded.
        say: Is told what happens.

    Returns:
        Their folders.
    """
    if flavour != "cpu":
        return ()
    try:
        standard = standard_environment(flavour)
        if offline and not standard.packages.exists():
            say("models run uncompiled, which is slower: without network there is no environment "
                "to compile them in (python3 deploy/prepare.py makes it)")  # fmt: skip
            return ()
        environment = standard.ensure(say)
    except EnvironmentSetupError as error:
        say(f"models run uncompiled, which is slower: {error.cause}")
        return ()
    models = [MODEL_REPOSITORY / model / VERSION for model in DEFAULT_MODELS]
    made = {
        folder
        for level in (PORTABLE_LEVEL, None)
        for folder in ensure_compiled(environment, models, cache_folder(), say, level).folders
    }
    return tuple(sorted(made))
