"""The folder that the image is built from: everything that ``containers/Dockerfile`` takes.

``triton.tar``, ``packages.tar`` and ``serving.tar`` are layers that begin at the root of the
file system; ``models/`` and ``bin/`` are small enough to lie there as they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from deploy.console import Say
from deploy.deployment import DEFAULT_MODELS
from deploy.environment.lock import Flavour
from deploy.images.base import Base
from deploy.images.tars import CONTENT_EPOCH
from deploy.images.triton import triton_layer
from deploy.packing.layers import IMAGE_PREFIX, pack_layers
from deploy.packing.plan import EnvironmentBuild
from deploy.packing.prefix import Prefix
from deploy.paths import CHECKOUT, MODEL_REPOSITORY
from deploy.repository.config import GpuInstances, LaunchSettings
from deploy.repository.stage import plan_models, stage
from deploy.server.distribution import TritonDistribution

CONTAINERS = CHECKOUT / "containers"
SCRIPTS = ("check", "health", "serve")
# One thread each: two answer faster than one, and start on two cores at once.
INSTANCES = 2


def make_context(
    folder: Path,
    *,
    build: EnvironmentBuild,
    prefix: Prefix,
    distribution: TritonDistribution,
    base: Base,
    say: Say,
    repository: Path = MODEL_REPOSITORY,
    models: Sequence[str] = DEFAULT_MODELS,
) -> None:
    """Fill ``folder``, which is empty.

    Args:
        folder: The context to be.
        build: What the environment is made of.
        prefix: The environment.
        distribution: The Triton whose stub fits it.
        base: What the image is to stand on.
        say: Is told what happens.
        repository: The model repository to take the models from.
        models: The models.

    Raises:
        RepositoryError: Naming the model, the file and what is wrong.
        BuildError: If a layer cannot be made.
    """
    stage_models(
        folder / "models",
        repository=repository,
        models=models,
        environment_digest=prefix.digest,
        flavour=build.flavour,
    )
    triton_layer(distribution, folder / "triton.tar", base=base, say=say)
    layers = pack_layers(prefix, build, folder, say, CONTENT_EPOCH)
    layers.packages.rename(folder / "packages.tar")
    layers.serving.rename(folder / "serving.tar")
    for name in ("Dockerfile", ".dockerignore"):
        shutil.copyfile(CONTAINERS / name, folder / name)
    (folder / "bin").mkdir()
    for name in SCRIPTS:
        shutil.copy(CONTAINERS / name, folder / "bin" / name)


def stage_models(
    folder: Path,
    *,
    repository: Path,
    models: Sequence[str],
    environment_digest: str,
    flavour: Flavour,
) -> None:
    """Write the repositories that the image serves: ``cpu``, and ``gpu`` in that flavour.

    Args:
        folder: Where they will lie side by side.
        repository: The model repository to take the models from.
        models: The models.
        environment_digest: Names the environment; the models check that they run in it.
        flavour: What the environment is for.

    Raises:
        RepositoryError: Naming the model, the file and what is wrong.
    """
    for device in ("cpu", "gpu") if flavour == "gpu" else ("cpu",):
        settings = LaunchSettings(
            environment=Path(IMAGE_PREFIX),
            parameters={"environment_digest": environment_digest},
            instances=INSTANCES,
            gpus=GpuInstances(INSTANCES) if device == "gpu" else None,
        )
        stage(plan_models(repository, models, settings, {}), folder / device)
