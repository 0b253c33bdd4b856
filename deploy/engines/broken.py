"""Which models of a server are at fault, where others can be served without them."""

import re
from collections.abc import Mapping

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


def tell_apart(
    said: str,
    probe: Probe,
    golden: Mapping[str, GoldenEvent | None],
    *,
    alive: bool,
    late: bool,
) -> dict[str, LaunchError]:
    """Return why some models of a server are known not to come, where all others may.

    Args:
        said: What it has logged.
        golden: The models that are waited for, with their reference outputs.
        late: Whether the time to become ready is over.
    """
    causes: dict[str, LaunchError] = {}
    if not alive:
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
    return causes


def why_not_loaded(said: str, model: str) -> LaunchError | None:
    """Return what a server's log says about a model that it could not load, or None."""
    for found in NOT_LOADED.finditer(said):
        if found["model"] == model:
            return diagnose(found[0])
    return None
