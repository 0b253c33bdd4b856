"""The folders that the kit reads from and writes to.

The user's are those of the XDG base directory specification.
"""

import os
from pathlib import Path

from deploy.host.errors import DeploymentError

# The deployment of commands that name none.
DEFAULT_NAME = "numl"

_PACKAGE = Path(__file__).resolve().parents[1]
# What a wheel holds of a checkout: models, recipes, locks, chart.
_SHARE = _PACKAGE / "share"
IS_INSTALLED = _SHARE.is_dir()
CHECKOUT = _SHARE if IS_INSTALLED else _PACKAGE.parent
# Python finds the kit here.
IMPORTS = _PACKAGE.parent
# Where artefacts are built, unless told otherwise: in the checkout, or where the command is typed.
DIST = (Path.cwd() if IS_INSTALLED else CHECKOUT) / "dist"
MODEL_REPOSITORY = CHECKOUT / "model_repository"
ENVIRONMENT_SOURCE = CHECKOUT / "envs" / "numl"


def _base(variable: str, fallback: str) -> Path:
    value = os.environ.get(variable, "")
    # The specification says to ignore a relative path.
    if value.startswith("/"):
        return Path(value)
    try:
        return Path.home() / fallback
    except RuntimeError:
        cause = "HOME is not set, and the system knows no home of this user"
        raise DeploymentError(cause, f"set HOME, or {variable}") from None


def cache_folder() -> Path:
    """Return the folder for everything that can be recreated."""
    return _base("XDG_CACHE_HOME", ".cache") / "numlkit"


def state_folder() -> Path:
    return _base("XDG_STATE_HOME", ".local/state") / "numlkit"


def deployments_folder() -> Path:
    return state_folder() / "deployments"
