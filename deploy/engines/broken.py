"""Which models of a server are at fault, where others can be served without them."""

import re
from collections.abc import Mapping
from typing import Protocol

from deploy.client.probe import Probe, smoke
from deploy.host.errors import LaunchError
from deploy.host.failures import diagnose
from numl_formats.golden import GoldenEvent

# With the lines that follow, up to the next message.
NOT_LOADED = re.compile(
    r"(?:failed to load|Poll failed for model directory) '(?P<model>[^']+)'[\s\S]*?"
    r"(?=\n[IWEF]\d{4} |\Z)"
)


class BrokenModelsError(LaunchError):
    """Some models cannot be served; without them the others may be."""

    def __init__(self, causes: Mapping[str, LaunchError]) -> None:
        self.causes = causes
        first = next(iter(causes.values()))
        super().__init__("; ".join(error.cause for error in causes.values()), first.remedy)


class Starting(Protocol):
    """A server that is starting."""

    def alive(self) -> bool:
        """Return whether it runs."""

    def output(self) -> str:
        """Return what it has logged."""

    def outgrown(self) -> str | None:
        """Return in words by how much it exceeds its memory limit, or None."""


def tell_apart(
    server: Starting, probe: Probe, golden: Mapping[str, GoldenEvent | None], *, late: bool
) -> None:
    """Raise BrokenModelsError if some models are known not to come, and all others may.

    Args:
        golden: The models that are waited for, with their reference outputs.
        late: Whether the time to become ready is over.
    """
    said = server.output()
    causes: dict[str, LaunchError] = {}
    if not server.alive():
        causes = {model: why for model in golden if (why := why_not_loaded(said, model))}
    elif probe.answers_itself():
        # It answers nobody until it has loaded what it can.
        for model, event in golden.items():
            result = smoke(probe, model, event)
            if not result.ok and (late or not result.late):
                wrong = LaunchError(f"model {model}: {result.error}", "check its weights")
                causes[model] = wrong if result.ready else why_not_loaded(said, model) or wrong
    elif late:
        remedy = "allow more time (--timeout), or see what its initialize waits for"
        for model in golden:
            if f"successfully loaded '{model}'" not in said:
                causes[model] = LaunchError(f"model {model} is not ready in time", remedy)
    if causes and server.outgrown() is None:
        raise BrokenModelsError(causes)


def why_not_loaded(said: str, model: str) -> LaunchError | None:
    """Return what a server's log says about a model that it could not load, or None."""
    for found in NOT_LOADED.finditer(said):
        if found["model"] == model:
            return diagnose(found[0])
    return None
