"""How long starts took on this host: two ways to start the same are compared by what was seen."""

from __future__ import annotations

import json
import platform
from contextlib import suppress
from pathlib import Path
from typing import Literal

from deploy.files import locked, write_atomically
from deploy.paths import cache_folder
from deploy.plan import LaunchPlan

Env = Literal["unpacked", "packed"]


def remember(plan: LaunchPlan, seconds: float) -> None:
    """Keep how long a start took, in seconds, if that can be written."""
    file = _file()
    with suppress(OSError), locked(file.with_suffix(".lock")):
        times = _times(file)
        times[_key(plan, plan.deployment.env)] = seconds
        write_atomically(file, json.dumps(times, indent=2) + "\n")


def compared(plan: LaunchPlan, seconds: float) -> str | None:
    """Return how a start compares with one whose environment lay the other way, in one line.

    Args:
        plan: What was started.
        seconds: How long it took.

    Returns:
        None if there is nothing to say.
    """
    if plan.container is None:
        return None
    env = plan.deployment.env
    other: Env = "unpacked" if env == "packed" else "packed"
    before = _times(_file()).get(_key(plan, other))
    took = f"ready in {seconds:.1f} s"
    if before is not None:
        how = "from the kit's image" if other == "unpacked" else "with --env packed"
        return f"{took}; {how} the same took {before:.1f} s on this host"
    if env == "packed":
        extracted = plan.container.extracted_bytes / 1e6
        return (
            f"{took}, after {extracted:.0f} MB were extracted; in the kit's image (without "
            "--env packed) they lie unpacked"
        )
    return None


def _file() -> Path:
    return cache_folder() / "ready-seconds.json"


def _key(plan: LaunchPlan, env: Env) -> str:
    # A home folder may be shared by hosts.
    models = ",".join(f"{model}:{count}" for model, count in sorted(plan.instances.items()))
    return f"{platform.node()} {plan.engine} {env} {models}"


def _times(file: Path) -> dict[str, float]:
    with suppress(OSError, ValueError, TypeError, AttributeError):
        return {str(key): float(value) for key, value in json.loads(file.read_text()).items()}
    return {}
