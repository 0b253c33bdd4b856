"""How many processes serve each model, and on which devices."""

from __future__ import annotations

import os

from deploy.deployment import Deployment
from deploy.engines.site import kit_models, site_models
from deploy.environment.lock import read_lock
from deploy.errors import GpuError
from deploy.hardware.gpu import find_gpus
from deploy.hardware.plan import ON_CPU, DevicePlan, plan_gpus
from deploy.paths import ENVIRONMENT_SOURCE, MODEL_REPOSITORY
from deploy.repository.config import GpuInstances, ModelConfig, made_for_cpu, read_config
from deploy.repository.served import stub_count
from deploy.repository.stage import find_model
from deploy.server.release import gpu_needs


def choose_devices(deployment: Deployment) -> DevicePlan:
    """Return the GPUs that a launch uses; none where it was not asked to use any.

    Raises:
        GpuError: If it was asked to and there is none that it can use.
    """
    if deployment.flavour == "cpu":
        return ON_CPU
    models = [*gpu_models(deployment)]
    models += [m.name for m in site_models(deployment) if not made_for_cpu(m.config)]
    if not models:
        raise GpuError(
            f"none of {', '.join(deployment.models)} is made for a GPU", "start with --cpu"
        )
    lock = read_lock(ENVIRONMENT_SOURCE / "locks", "gpu")
    return plan_gpus(
        deployment.devices,
        find_gpus(),
        needs=(gpu_needs(deployment.triton), lock.gpu_needs()),
        processes=len(models) * (deployment.instances or 1),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def gpu_models(deployment: Deployment) -> tuple[str, ...]:
    """Return the kit's models of a launch that run on GPUs where it uses any."""
    return tuple(m for m in kit_models(deployment) if not made_for_cpu(_config(m)))


def gpu_instances(deployment: Deployment, devices: DevicePlan) -> GpuInstances | None:
    """Return how a model's instances are spread over GPUs, or None: they run on CPUs."""
    if not devices.devices:
        return None
    # Requests that wait together run as one batch: a second process would halve the batches.
    return GpuInstances(count=deployment.instances or 1, numbers=devices.numbers)


def count_instances(deployment: Deployment, devices: DevicePlan) -> dict[str, int]:
    """Return how many processes serve each model; none if it runs in the server itself.

    Raises:
        RepositoryError: If a model or its configuration is not usable.
    """
    on_gpu = gpu_instances(deployment, devices)
    # A site's own keep what stands in their configurations.
    counts = {
        model.name: stub_count(
            model.config, versions=len(model.versions), gpus=len(devices.devices)
        )
        for model in site_models(deployment)
    }
    for model in kit_models(deployment):
        if on_gpu is None or made_for_cpu(_config(model)):
            counts[model] = deployment.instance_count()
        else:
            counts[model] = on_gpu.count * len(on_gpu.numbers)
    return {model: counts[model] for model in deployment.models}


def _config(model: str) -> ModelConfig:
    return read_config(find_model(MODEL_REPOSITORY, model) / "config.pbtxt")
