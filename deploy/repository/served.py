"""What Triton makes of a configuration: which versions it serves, in how many processes.

Source of the rules: Triton's user guide, "Model Configuration" and "Model Repository", and
what its core makes of an instance group that leaves things out.
"""

from __future__ import annotations

from collections.abc import Iterable

from tritonclient.grpc import model_config_pb2

from deploy.repository.config import ModelConfig

PYTHON_BACKEND = "python"
ENSEMBLE = "ensemble"

_KIND = model_config_pb2.ModelInstanceGroup


def uses_stubs(config: ModelConfig) -> bool:
    """Return whether the model runs in processes of the Python backend, not in the server."""
    return bool(config.backend == PYTHON_BACKEND)


def served_versions(config: ModelConfig, names: Iterable[str]) -> tuple[int, ...]:
    """Return the versions that are served, the oldest first.

    Args:
        config: The configuration.
        names: Names of the folders in the model's folder. One that is no number, or begins
            with a zero, is no version.
    """
    there = sorted(int(name) for name in names if name.isdecimal() and name[0] != "0")
    policy = config.version_policy
    if policy.HasField("all"):
        return tuple(there)
    if policy.HasField("specific"):
        return tuple(version for version in there if version in policy.specific.versions)
    return tuple(there[-(policy.latest.num_versions or 1) :])


def stub_count(config: ModelConfig, *, versions: int, gpus: int) -> int:
    """Return how many processes of the Python backend the model has when all is well.

    Args:
        config: The configuration, as it is served.
        versions: How many versions are served.
        gpus: How many GPUs the server sees.
    """
    if not uses_stubs(config):
        return 0
    groups = config.instance_group or (_KIND(),)
    return versions * sum(_instances(group, gpus) for group in groups)


def is_complete(config: ModelConfig) -> bool:
    """Return whether a configuration says all that a server needs to know.

    Triton asks model or backend for what is missing, at the price of starting every model of
    the Python backend twice.
    """
    backend = config.backend or config.platform
    return bool(backend and config.input and config.output)


def skipped_warmups(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of warm-ups that Triton passes over without a word."""
    # Without batching it takes the count of samples from here, and the default is none.
    return tuple(warmup.name for warmup in config.model_warmup if not warmup.batch_size)


def _instances(group: ModelConfig, gpus: int) -> int:
    """Return how many instances a group has."""
    count = group.count or 1
    on_gpu = group.kind == _KIND.KIND_GPU
    if group.kind == _KIND.KIND_AUTO:
        # GPUs, if there are any, and all that the group names are among them.
        on_gpu = gpus > 0 and all(number < gpus for number in group.gpus)
    return int(count * (len(group.gpus) or gpus)) if on_gpu else int(count)
