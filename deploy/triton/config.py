"""config.pbtxt through its protobuf message, never by string work.

Source of the format: Triton's ``model_config.proto``.
"""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any, TypeAlias

from google.protobuf import text_format

from deploy.deployment.deployment import Batch
from deploy.deployment.limits import Limits
from deploy.host.errors import RepositoryError
from deploy.host.files import write_atomically
from numl_formats.card import ModelCard
from numl_formats.config import of_card
from numl_formats.limits import LONGEST_WAIT, MAX_HITS, MOST_WAITING
from numl_formats.repository import CONFIG


def _load() -> Any:
    """Return tritonclient's generated module of the message.

    Importing ``tritonclient.grpc`` takes longer than all the rest of a command: it brings gRPC and
    numpy, of which this module needs neither.
    """
    package = find_spec("tritonclient")  # found, not imported
    assert package is not None
    folders = package.submodule_search_locations
    assert folders is not None
    return SimpleNamespace(**run_path(f"{folders[0]}/grpc/model_config_pb2.py"))


model_config_pb2 = _load()
ModelConfig: TypeAlias = Any  # protobuf's class; tritonclient ships no types

PYTHON_BACKEND = "python"
ENSEMBLE = "ensemble"
_KIND = model_config_pb2.ModelInstanceGroup
# Parameters that numl_serving reads.
BATCH_EVENTS, BATCH_WAIT = "batch_max_events", "batch_max_wait_ms"
WEIGHTS_DIGEST = "weights_sha256"
# A GPU takes about as long for a few events as for one; on a CPU batching gains nothing.
GPU_BATCH = Batch()


@dataclass(frozen=True)
class LaunchSettings:
    """What a launch sets in a model's configuration.

    Attributes:
        environment: Where the server finds the execution environment: an absolute folder or
            archive, or a path that begins with ``$$TRITON_MODEL_DIRECTORY``.
        instances: Instances of each model on CPUs.
        gpu_instances: Instances on each GPU that the server sees, instead; None: it uses no GPU.
            A model made for CPUs stays there.
        batch: How requests are batched; None: as the tracked configuration says, and on GPUs
            otherwise as ``GPU_BATCH``.
    """

    environment: Path
    parameters: Mapping[str, str]
    instances: int
    gpu_instances: int | None = None
    batch: Batch | None = None
    limits: Limits = field(default_factory=Limits)


def read_config(path: Path) -> ModelConfig:
    """Read a ``config.pbtxt``.

    Raises:
        RepositoryError: Naming the file, and line and column of the first fault.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise RepositoryError(f"{path}: {reason}") from None
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        cause = f"{path}: not a model configuration: {str(error).splitlines()[0]}"
        raise RepositoryError(cause) from None


def config_of(folder: Path) -> ModelConfig:
    """Read the configuration of the model in ``folder``; a name in it must be the folder's."""
    path = folder / CONFIG
    config = read_config(path)
    if config.name not in ("", folder.name):
        cause = f"{path}: names its model {config.name!r}"
        raise RepositoryError(cause, f'name: "{folder.name}", or no name')
    return config


def write_config(config: ModelConfig, path: Path) -> None:
    write_atomically(path, text_format.MessageToString(config))


def for_launch(config: ModelConfig, settings: LaunchSettings, card: ModelCard) -> ModelConfig:
    """Return a copy of a tracked configuration with a launch's settings and the card's tensors."""
    launched = deepcopy(config)
    launched.parameters["EXECUTION_ENV_PATH"].string_value = str(settings.environment)
    for name, value in sorted(settings.parameters.items()):
        launched.parameters[name].string_value = value
    del launched.instance_group[:]
    if settings.gpu_instances is None or made_for_cpu(config):
        launched.instance_group.add(kind=_KIND.KIND_CPU, count=settings.instances)
    else:
        # A group that names no GPUs has ``count`` instances on each that there is.
        launched.instance_group.add(kind=_KIND.KIND_GPU, count=settings.gpu_instances)
        for name, value in _batch_parameters(GPU_BATCH).items():
            if name not in launched.parameters:
                launched.parameters[name].string_value = value
    if settings.batch is not None:
        for name, value in _batch_parameters(settings.batch).items():
            launched.parameters[name].string_value = value
    _bound(launched, settings)
    _fit(launched, card)
    return launched


def template_of(config: ModelConfig) -> str:
    """Return a launch's configuration without its name, versions and what the card says.

    ``numl_formats.config`` makes a configuration of it, and of the card of other weights.
    """
    template = deepcopy(config)
    for name in ("name", "version_policy", "input", "output"):
        template.ClearField(name)
    for name in list(template.parameters):
        if name.endswith("_classes") or name in ("weights", WEIGHTS_DIGEST):
            del template.parameters[name]
    return str(text_format.MessageToString(template))


def made_for_cpu(config: ModelConfig) -> bool:
    """Return whether a tracked configuration keeps its model on CPUs, even in a GPU launch."""
    return any(group.kind == _KIND.KIND_CPU for group in config.instance_group)


def datatype(tensor: Any) -> str:
    """Return a tensor's type as clients have it, such as FP32 or BYTES."""
    name = str(model_config_pb2.DataType.Name(tensor.data_type)).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def uses_stubs(config: ModelConfig) -> bool:
    return bool(config.backend == PYTHON_BACKEND)


def served_versions(config: ModelConfig, names: Iterable[str]) -> tuple[int, ...]:
    """Return the versions that are served, oldest first, given the names of the folders.

    A name that is not a number, or starts with a zero, is not a version.
    """
    there = sorted(int(name) for name in names if name.isdecimal() and name[0] != "0")
    policy = config.version_policy
    if policy.HasField("all"):
        return tuple(there)
    if policy.HasField("specific"):
        return tuple(version for version in there if version in policy.specific.versions)
    return tuple(there[-(policy.latest.num_versions or 1) :])


def taken_for(name: str) -> int | None:
    """Return the version that Triton takes a folder for that is none; None if it does not.

    It reads a number at the begin of a name, whatever follows; none with a leading zero.
    """
    found = re.match(r"\s*([+-]?[0-9]+)", name)
    return None if found is None or name.isdecimal() or name[0] == "0" else int(found[1])


def stub_count(config: ModelConfig, *, versions: int, gpus: int) -> int:
    """Return how many processes of the Python backend a healthy model has."""
    if not uses_stubs(config):
        return 0
    groups = config.instance_group or (_KIND(),)
    return versions * sum(_instances(group, gpus) for group in groups)


def is_complete(config: ModelConfig) -> bool:
    """Return whether a configuration leaves nothing for the server to complete.

    Triton asks the backend for what is missing, and starts every Python model twice to do so.
    """
    backend = config.backend or config.platform
    return bool(backend and config.input and config.output)


def skipped_warmups(config: ModelConfig) -> tuple[str, ...]:
    # Without batching it takes the number of samples from here; the default is 0.
    return tuple(warmup.name for warmup in config.model_warmup if not warmup.batch_size)


def on_cpu(configs: Mapping[str, ModelConfig]) -> tuple[str, ...]:
    """Return which of these models, by name, a server without a GPU can load.

    It refuses those of ``KIND_GPU``, and ensembles of what it refuses.
    """
    gone = {
        name
        for name, config in configs.items()
        if any(group.kind == _KIND.KIND_GPU for group in config.instance_group)
    }
    steps = {
        name: {step.model_name for step in config.ensemble_scheduling.step}
        for name, config in configs.items()
    }
    while more := {name for name in configs if steps[name] & gone} - gone:
        gone |= more
    return tuple(name for name in configs if name not in gone)


def _instances(group: ModelConfig, gpus: int) -> int:
    count = group.count or 1
    on_gpu = group.kind == _KIND.KIND_GPU
    if group.kind == _KIND.KIND_AUTO:
        # GPUs, if there are any, and all that the group names are among them.
        on_gpu = gpus > 0 and all(number < gpus for number in group.gpus)
    return int(count * (len(group.gpus) or gpus)) if on_gpu else int(count)


def misfits(config: ModelConfig, card: ModelCard) -> tuple[str, ...]:
    """Return the names of outputs and inputs of ``config`` that differ from those of ``card``.

    A launch corrects them; a server that is given the configuration as it is does not.
    """
    fitting = deepcopy(config)
    _fit(fitting, card)
    found = []
    for there, right in ((config.output, fitting.output), (config.input, fitting.input)):
        given, wanted = ({t.name: t for t in tensors} for tensors in (there, right))
        for name, tensor in given.items():
            # Existing configurations declare it in either way; what is answered is the same.
            if name in wanted and list(tensor.dims) == [1, *wanted[name].dims]:
                wanted[name].dims[:] = tensor.dims
        found += [n for n in dict.fromkeys([*wanted, *given]) if given.get(n) != wanted.get(n)]
    return tuple(found)


def _batch_parameters(batch: Batch) -> dict[str, str]:
    return {BATCH_EVENTS: str(batch.max_events), BATCH_WAIT: f"{batch.wait_ms:g}"}


def _bound(config: ModelConfig, settings: LaunchSettings) -> None:
    """Give ``config`` the limits of a launch; its instances take from one queue.

    On GPUs the queue is the model's own, which batches: `numl_serving.triton`.
    """
    limits = settings.limits
    config.parameters[MAX_HITS].string_value = str(limits.hits)
    (group,) = config.instance_group
    if group.kind == _KIND.KIND_GPU:
        config.parameters[MOST_WAITING].string_value = str(limits.most_waiting(gpu=True))
        config.parameters[LONGEST_WAIT].string_value = f"{limits.wait_s:g}"
    elif limits.bound_the_queue:
        policy = config.dynamic_batching.default_queue_policy
        policy.default_timeout_microseconds = int(limits.wait_s * 1e6)
        policy.allow_timeout_override = True  # a client may wait for less, not for more
        policy.max_queue_size = limits.most_waiting(gpu=False) * group.count


def _fit(config: ModelConfig, card: ModelCard) -> None:
    """Give ``config`` the tensors and class names of ``card``."""
    del config.input[:], config.output[:]
    text_format.Merge(of_card(card), config)
