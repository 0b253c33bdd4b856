"""A model instance's settings in config.pbtxt, and whether they fit the model and the machine.

Parameters of config.pbtxt (all strings, all optional; this module ignores others):

- ``environment_digest``: digest of the execution environment that the model must run in.
- ``guard_arrays``: ``off`` on a Triton that refuses impossible shapes itself, which
  ``native/guard.cpp`` explains.
- ``max_hits``: most hits of an event; one that has more is refused. By default, what the native
  library accepts.
- ``most_waiting``: on a GPU, most requests that wait for an instance; more are refused. By default,
  or 0, any number.
- ``longest_wait_s``: on a GPU, the longest that a request waits for an instance (s); it is refused
  then. By default, or 0, any time.
- ``batch_max_events``: on a GPU, most events in one batch, default 1.
- ``batch_max_wait_ms``: on a GPU, longest time (ms) for which an event waits for others, default 0.
- ``batch_max_hits``, ``batch_max_edges``: on a GPU, most hits and edges in one batch; an event that
  has more is run alone. The defaults, those of `numl_serving.batches.Limits`, are for a GPU with
  some gigabytes of free memory.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numl_formats.card import ModelCard
from numl_formats.contract import Tensor
from numl_formats.repository import GOLDEN_FILE
from numl_serving.batches import Limits
from numl_serving.errors import ModelFilesError, one_line
from numl_serving.event import Event, empty_event
from numl_serving.golden import read_event
from numl_serving.runtime import CPU

ENVIRONMENT_FILE = "numlkit-environment.json"
"""File at the root of an execution environment whose ``digest`` identifies it."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a model's config.pbtxt; see the module docstring."""

    batch_max_events: int = 1
    batch_max_wait_ms: float = 0.0
    limits: Limits = field(default_factory=Limits)
    environment_digest: str | None = None
    guards_arrays: bool = True
    max_hits: int | None = None
    most_waiting: int | None = None
    longest_wait_s: float = 0.0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Parameters:
        """Read the parameters from Triton's model configuration.

        Raises:
            ModelFilesError: A parameter is not a number or too small.
        """
        given = {
            name: value["string_value"] for name, value in config.get("parameters", {}).items()
        }

        def size(name: str, default: int) -> int:
            return int(_number(given, name, whole=True, least=1, default=default))

        largest = Limits()
        most = _number(given, "most_waiting", whole=True, least=0, default=0)
        longest = _number(given, "longest_wait_s", whole=False, least=0, default=0)

        return cls(
            batch_max_events=size("batch_max_events", 1),
            batch_max_wait_ms=_number(given, "batch_max_wait_ms", whole=False, least=0, default=0),
            limits=Limits(
                hits=size("batch_max_hits", largest.hits),
                edges=size("batch_max_edges", largest.edges),
            ),
            environment_digest=given.get("environment_digest"),
            guards_arrays=given.get("guard_arrays") != "off",
            max_hits=size("max_hits", 1) if "max_hits" in given else None,
            most_waiting=int(most) or (sys.maxsize if longest else None),
            longest_wait_s=longest,
        )


def check_environment(digest: str, prefix: Path) -> None:
    """Check that this interpreter belongs to the environment the model was deployed with.

    Triton may start a stub with another Python than the one that EXECUTION_ENV_PATH names, and
    says nothing about it. The digest alone does not show it: whatever Python finds a virtual
    environment on its path takes the environment's prefix for its own.

    Raises:
        ModelFilesError: It does not.
    """
    made_for = None
    try:
        facts = json.loads((prefix / ENVIRONMENT_FILE).read_text())
        found, made_for = facts["digest"], facts.get("python")
    except FileNotFoundError:
        found = f"none ({ENVIRONMENT_FILE} is missing)"
    except (OSError, ValueError, KeyError, TypeError) as error:
        found = f"none ({ENVIRONMENT_FILE} cannot be read: {one_line(error)})"
    if found != digest:
        raise ModelFilesError(
            f"wrong execution environment: sys.prefix {prefix} has digest {found} but "
            f"environment_digest in config.pbtxt is {digest}: check EXECUTION_ENV_PATH and that "
            "the stub's Python version is the environment's"
        )
    running = platform.python_version()
    if made_for is not None and str(made_for).split(".")[:2] != running.split(".")[:2]:
        raise ModelFilesError(
            f"wrong execution environment: {prefix} is for Python {made_for}, this is Python "
            f"{running}: check EXECUTION_ENV_PATH and that the stub's Python version is the "
            "environment's"
        )


def choose_device(kind: str, device_id: str) -> str:
    """Return where the network runs, as `Runtime.load` takes it.

    Args:
        kind: ``model_instance_kind``: GPU, or anything else for the CPU.
        device_id: ``model_instance_device_id``.

    Raises:
        ModelFilesError: It is a GPU and this environment has no torch, its torch cannot use one,
            or finds none.
    """
    if kind != "GPU":
        return CPU
    try:
        from numl_serving.torch_runtime import gpu_of
    except ModuleNotFoundError as error:
        raise ModelFilesError(
            f"the instance is of KIND_GPU but this environment has no {error.name}: "
            "deploy with the GPU environment or set KIND_CPU in config.pbtxt's instance_group"
        ) from None
    return gpu_of(device_id)


def warm_up_event(directory: Path, card: ModelCard) -> Event:
    """Return the model's golden event, or an event without hits where it has none.

    Raises:
        ModelFilesError: The golden event cannot be read.
    """
    path = directory / GOLDEN_FILE
    return read_event(path) if path.exists() else empty_event(card.schema)


def check_tensors(config: Mapping[str, Any], card: ModelCard) -> None:
    """Check that the configuration declares the inputs that the model needs and outputs it gives.

    Only a last dimension that is fixed is compared: it is the number of classes. Leading ones
    may differ (configurations in use declare ``e_evt`` as [4], the answer is [1, 4]).

    Raises:
        ModelFilesError: An input is missing, an output is not one of the model's or has another
            number of classes.
    """
    inputs = {tensor["name"] for tensor in config["input"]}
    for tensor in card.schema.tensors:
        if tensor.name not in inputs and not tensor.optional:
            raise ModelFilesError(
                f"config.pbtxt lacks input {tensor.name}, which this model needs: add it"
            )
    given: dict[str, Tensor] = {tensor.name: tensor for tensor in card.outputs}
    for output in config["output"]:
        name = output["name"]
        if name not in given:
            raise ModelFilesError(
                f"config.pbtxt declares output {name} but these weights give only "
                f"{', '.join(sorted(given))}: remove it from config.pbtxt"
            )
        declared, width = int(output["dims"][-1]), given[name].dims[-1]
        if declared not in (-1, width):
            raise ModelFilesError(
                f"config.pbtxt declares {declared} as the last dimension of output {name} but "
                f"these weights have {width}: correct its dims in config.pbtxt"
            )


def _number(given: Mapping[str, str], name: str, *, whole: bool, least: int, default: int) -> float:
    text = given.get(name)
    if text is None:
        return default
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = least - 1
    if not least <= value < float("inf"):
        kind = "whole number" if whole else "number"
        raise ModelFilesError(
            f"parameter {name} in config.pbtxt is {text!r}: expected a {kind} of at least {least}"
        )
    return value
