"""The weights a launch serves: the tracked ones, or a user's own."""

from __future__ import annotations

import hashlib
from pathlib import Path

from deploy.console import Say
from deploy.deployment import Deployment
from deploy.engines.site import digest_site, kit_models, site_models
from deploy.environment.checkpoints import ensure_imported, imported_folder
from deploy.files import digest_of
from deploy.paths import MODEL_REPOSITORY, cache_folder
from deploy.repository.stage import MODEL_FILES, VERSION


def own_weights(deployment: Deployment) -> dict[str, Path]:
    """Return where the weights that replace the tracked ones lie, or will lie, by model."""
    return {
        model: imported_folder(cache_folder(), checkpoint, deployment.norms.get(model))
        for model, checkpoint in deployment.checkpoints.items()
    }


def ensure_own_weights(deployment: Deployment, say: Say) -> None:
    """Import the checkpoints that are not imported yet.

    Raises:
        KitError: If one is not usable.
    """
    for model, checkpoint in deployment.checkpoints.items():
        norm = deployment.norms.get(model)
        ensure_imported(cache_folder(), model, checkpoint, norm, say)


def digest_served(deployment: Deployment, runtime: str) -> str:
    """Return a digest of all that a launch runs and serves.

    Args:
        deployment: What is wanted.
        runtime: Digest of the execution environment, or of the image that it is in.
    """
    total = hashlib.sha256(runtime.encode())
    given = own_weights(deployment)
    total.update(digest_site(site_models(deployment)).encode())
    for model in kit_models(deployment):
        folder = MODEL_REPOSITORY / model
        weights = given.get(model, folder / VERSION)
        total.update(weights.name.encode())
        for path in (
            folder / "config.pbtxt",
            folder / VERSION / "model.py",
            *(weights / name for name in MODEL_FILES),
        ):
            if path.is_file():
                total.update(digest_of([path], base=path.parent).encode())
    return total.hexdigest()
