"""A model repository for a stock Triton image: models, packed environment, the stub for it.

The repository is complete and can be moved: every model names the one archive beside the
model folders, relative to its own folder, so that Triton extracts it once for all of them.
The stub lies beside each ``config.pbtxt``, since a stock image brings one for another Python;
it finds libpython and the CUDA runtime, which it is linked to, beside itself.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from deploy.errors import BuildError
from deploy.files import built_folder
from deploy.repository.config import GpuInstances, LaunchSettings
from deploy.repository.stage import plan_models, write_models
from deploy.server.distribution import TritonDistribution
from deploy.server.stub import stub_of_wheel

MARKER = "numlkit-wired.json"


def wired_settings(
    archive: Path, *, environment_digest: str, instances: int, gpu: bool
) -> LaunchSettings:
    """Return what a wired repository sets in every model's configuration.

    Args:
        archive: The packed environment.
        environment_digest: Names its content; the models check that they run in it.
        instances: Instances of each model, on each GPU if they run on GPUs.
        gpu: Whether they run on GPUs: all that the server will see.
    """
    return LaunchSettings(
        environment=Path("$$TRITON_MODEL_DIRECTORY") / ".." / archive.name,
        parameters={"environment_digest": environment_digest},
        instances=instances,
        gpus=GpuInstances(instances) if gpu else None,
    )


def check_target(target: Path) -> None:
    """Check that ``target`` may be written, and replaced if it is there.

    Raises:
        BuildError: If it holds something else than a wired repository.
    """
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() and not (target / MARKER).is_file():
        raise BuildError(
            f"{target} is not empty and not a repository that --wire has made",
            "name a new folder",
        )


def wire(
    target: Path,
    *,
    archive: Path,
    repository: Path,
    models: Sequence[str],
    settings: LaunchSettings,
    distribution: TritonDistribution,
    libpython: Path,
) -> None:
    """Write the repository to ``target``, whole or not at all.

    Args:
        target: The folder to make, or an older one to replace.
        archive: The packed environment.
        repository: The model repository to take the models from.
        models: The models.
        settings: As :func:`wired_settings` gives them.
        distribution: The Triton whose stub the environment's Python needs.
        libpython: The shared library of the environment's Python.

    Raises:
        BuildError: If ``target`` holds something else.
        RepositoryError: Naming the model, the file and what is wrong.
    """
    check_target(target)
    stub = stub_of_wheel(distribution, libpython)
    planned = [replace(model, stub=stub) for model in plan_models(repository, models, settings, {})]
    with built_folder(target) as folder:
        write_models(planned, folder)
        shutil.copyfile(archive, folder / archive.name)
        facts = {"environment": archive.name, "models": [model.name for model in planned]}
        (folder / MARKER).write_text(json.dumps(facts) + "\n", encoding="utf-8")
