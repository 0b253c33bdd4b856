"""Plans of launches: of each, a test says what matters to it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.deployment.deployment import Deployment, Ports
from deploy.deployment.plan import LaunchPlan
from deploy.host.errors import LaunchError


def make_plan(folder: Path, **settings: Any) -> LaunchPlan:
    """Return the plan of a launch in a deployment's folder."""
    given: dict[str, Any] = {
        "deployment": Deployment(), "engine": "local", "ports": Ports(), "arguments": (),
        "variables": {}, "instances": {}, "shm_prefix": "numl-", "identity": "", "artefact": "",
        "repository": folder / "model_repository", "log": folder / "server.log",
    }  # fmt: skip
    return LaunchPlan(**given | settings)


def refusal(start: Callable[[], object]) -> LaunchError:
    """Return why something cannot be started: a line, with a remedy."""
    with pytest.raises(LaunchError) as caught:
        start()
    assert "\n" not in caught.value.cause
    assert caught.value.remedy
    return caught.value
