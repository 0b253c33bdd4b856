"""The folders the kit writes to, after the XDG base directory specification."""

import os
from pathlib import Path

# The deployment of commands that name none.
DEFAULT_NAME = "numl"

CHECKOUT = Path(__file__).resolve().parents[2]
MODEL_REPOSITORY = CHECKOUT / "model_repository"
ENVIRONMENT_SOURCE = CHECKOUT / "envs" / "numl"


def _base(variable: str, fallback: str) -> Path:
    value = os.environ.get(variable, "")
    # The specification says to ignore a relative path.
    return Path(value) if value.startswith("/") else Path.home() / fallback


def cache_folder() -> Path:
    """Return the folder for everything that can be recreated."""
    return _base("XDG_CACHE_HOME", ".cache") / "numlkit"


def state_folder() -> Path:
    return _base("XDG_STATE_HOME", ".local/state") / "numlkit"


def deployments_folder() -> Path:
    return state_folder() / "deployments"
