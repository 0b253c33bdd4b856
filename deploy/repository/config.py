"""config.pbtxt through its protobuf message, never by string work.

Source of the format: Triton's ``model_config.proto``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from deploy.deployment import Batch
from deploy.errors import RepositoryError
from deploy.files import write_atomically

ModelConfig: TypeAlias = Any  # protobuf's class; tritonclient ships no types

SEMANTIC_OUTPUTS = ("x_semantic_u", "x_semantic_v", "x_semantic_y")
EVENT_OUTPUT = "e_evt"
# Parameters that numl_serving reads.
BATCH_EVENTS, BATCH_WAIT = "batch_max_events", "batch_max_wait_ms"
# A GPU takes about as long for a few events as for one; on a CPU joining gains nothing.
GPU_BATCH = Batch()
POSITION_INPUTS = tuple(f"spacepoint_table_position_{axis}" for axis in "xyz")
# The outputs that each head of a network gives.
OUTPUTS = {
    "semantic": SEMANTIC_OUTPUTS,
    "filter": ("x_filter_u", "x_filter_v", "x_filter_y"),
    "event": (EVENT_OUTPUT,),
    "vertex": ("v_evt",),
}


@dataclass(frozen=True)
class GpuInstances:
    """Where the instances of a model run on GPUs.

    Attributes:
        count: Instances on each GPU.
        numbers: The GPUs, as the server's process counts them: from 0 on those that
            CUDA_VISIBLE_DEVICES or its container lets it see. None named: all of these.
    """

    count: int
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class LaunchSettings:
    """What a launch sets in a model's configuration.

    Attributes:
        environment: Where the server finds the execution environment: an absolute folder or
            archive, or a path that begins with ``$$TRITON_MODEL_DIRECTORY``.
        parameters: Further string parameters, by name.
        instances: Instances of the model on CPUs.
        gpus: Where they run on GPUs instead, or None; a model that is made for a CPU stays there.
        batch: How requests join; None: as the tracked configuration says, and on GPUs as
            ``GPU_BATCH`` does in what that leaves open.
    """

    environment: Path
    parameters: Mapping[str, str]
    instances: int
    gpus: GpuInstances | None = None
    batch: Batch | None = None


@dataclass(frozen=True)
class WeightFacts:
    """What the weights of a model say about its outputs.

    Attributes:
        semantic_classes: Names of the semantic classes.
        event_classes: Names of the event classes; empty without that head.
        heads: The heads the weights have.
        spacepoint_positions: Whether the network reads spacepoint positions.
        demo: Whether they are demo weights.
    """

    semantic_classes: tuple[str, ...]
    event_classes: tuple[str, ...]
    heads: tuple[str, ...]
    spacepoint_positions: bool = False
    demo: bool = False


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
        raise RepositoryError(
            f"{path}: not a model configuration: {str(error).splitlines()[0]}"
        ) from None


def write_config(config: ModelConfig, path: Path) -> None:
    """Write ``config`` as text protobuf to ``path``."""
    write_atomically(path, text_format.MessageToString(config))


def for_launch(config: ModelConfig, settings: LaunchSettings, weights: WeightFacts) -> ModelConfig:
    """Return a copy of ``config`` with this launch's settings in it.

    Args:
        config: The tracked configuration; not changed.
        settings: Environment, parameters and instances.
        weights: What the weights say about the outputs.
    """
    launched = model_config_pb2.ModelConfig()
    launched.CopyFrom(config)
    launched.parameters["EXECUTION_ENV_PATH"].string_value = str(settings.environment)
    for name, value in sorted(settings.parameters.items()):
        launched.parameters[name].string_value = value
    kind = model_config_pb2.ModelInstanceGroup
    del launched.instance_group[:]
    if settings.gpus is None or made_for_cpu(config):
        launched.instance_group.add(kind=kind.KIND_CPU, count=settings.instances)
    else:
        # Triton makes ``count`` instances on each of a group's GPUs.
        launched.instance_group.add(
            kind=kind.KIND_GPU, count=settings.gpus.count, gpus=settings.gpus.numbers
        )
        for name, value in _batch_parameters(GPU_BATCH).items():
            if name not in launched.parameters:
                launched.parameters[name].string_value = value
    if settings.batch is not None:
        for name, value in _batch_parameters(settings.batch).items():
            launched.parameters[name].string_value = value
    _fit_outputs(launched, weights)
    return launched


def made_for_cpu(config: ModelConfig) -> bool:
    """Return whether a tracked configuration keeps its model on CPUs, whatever a launch has."""
    kind = model_config_pb2.ModelInstanceGroup.KIND_CPU
    return any(group.kind == kind for group in config.instance_group)


def misfits(config: ModelConfig, weights: WeightFacts) -> tuple[str, ...]:
    """Return the outputs and inputs of ``config`` that are not those of ``weights``, by name.

    A launch sets them right; a server that is given the configuration as it is does not.
    """
    fitting = model_config_pb2.ModelConfig()
    fitting.CopyFrom(config)
    _fit_outputs(fitting, weights)
    given = {output.name: list(output.dims) for output in config.output}
    for output in fitting.output:
        # Existing configurations declare it in either way; what is answered is the same.
        if output.name == EVENT_OUTPUT and given[EVENT_OUTPUT] == [1, *output.dims]:
            output.dims[:] = given[EVENT_OUTPUT]
    wanted = {name for head in weights.heads for name in OUTPUTS.get(head, ())}
    found = sorted(wanted - {output.name for output in config.output})
    for there, right in ((config.output, fitting.output), (config.input, fitting.input)):
        tensors = {tensor.name: tensor for tensor in there}
        fitted = {tensor.name: tensor for tensor in right}
        names = dict.fromkeys([*tensors, *fitted])
        found += [name for name in names if tensors.get(name) != fitted.get(name)]
    return tuple(found)


def _batch_parameters(batch: Batch) -> dict[str, str]:
    return {BATCH_EVENTS: str(batch.max_events), BATCH_WAIT: f"{batch.wait_ms:g}"}


def _fit_outputs(config: ModelConfig, weights: WeightFacts) -> None:
    """Give ``config`` the output sizes and class names of ``weights``."""
    absent = {name for head in OUTPUTS.keys() - set(weights.heads) for name in OUTPUTS[head]}
    kept = [output for output in config.output if output.name not in absent]
    del config.output[:]
    config.output.extend(kept)
    for output in config.output:
        if output.name in SEMANTIC_OUTPUTS:
            output.dims[:] = [-1, len(weights.semantic_classes)]
        elif output.name == EVENT_OUTPUT:
            output.dims[:] = [len(weights.event_classes)]
    config.parameters["semantic_classes"].string_value = ",".join(weights.semantic_classes)
    if weights.demo:
        config.parameters["weights"].string_value = "demo weights"
    if weights.event_classes:
        config.parameters["event_classes"].string_value = ",".join(weights.event_classes)
    if weights.spacepoint_positions:
        for name in sorted(set(POSITION_INPUTS) - {tensor.name for tensor in config.input}):
            config.input.add(
                name=name, data_type=model_config_pb2.TYPE_FP32, dims=[-1], optional=True
            )
