"""The glue between Triton's Python backend and the runtime.

A ``model.py`` only has to import `TritonPythonModel` from here. Requests are answered within
``execute``, or, with ``batch_max_events`` above 1, by a worker thread that runs those which wait
together as one graph batch. In both ways every request gets exactly one response, and what is
wrong with one event is told to that event's sender alone.

Parameters of config.pbtxt (all strings, all optional):

- ``threads``: intra-op threads of torch, default 1: on a CPU several instances with one thread
  each serve more events than one instance with several threads.
- ``batch_max_events``: most events in one batch, default 1.
- ``batch_max_wait_ms``: longest time (ms) for which an event waits for others, default 0.
- ``environment_digest``: digest of the execution environment that the model must run in.
- ``compiled``: folder of the compiled iterations that ``numl_serving.compile`` has made; without
  it, those that came with the environment. Where none fits, the network runs uncompiled.
"""

from __future__ import annotations

# Before torch, which others import, too.
from numl_serving.lean_torch import keep_imported

# isort: split
import importlib
import json
import platform
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from numl_serving.batching import BatchWorker
from numl_serving.compiled import own_folder
from numl_serving.errors import EventError, ModelFilesError, ServingError
from numl_serving.event import INPUT_TENSORS, Event
from numl_serving.golden import read_event
from numl_serving.metrics import Metrics
from numl_serving.modelcard import GOLDEN_FILE
from numl_serving.runtime import Outputs, Runtime
from numl_serving.startup import Startup

ENVIRONMENT_FILE = "numlkit-environment.json"
"""File at the root of an execution environment whose ``digest`` identifies it."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a model's config.pbtxt; the module's docstring describes them."""

    threads: int = 1
    batch_max_events: int = 1
    batch_max_wait_ms: float = 0.0
    environment_digest: str | None = None
    compiled: str | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Parameters:
        """Read the parameters from Triton's model configuration.

        Raises:
            ModelFilesError: A parameter is not a number or too small.
        """
        given = {
            name: value["string_value"] for name, value in config.get("parameters", {}).items()
        }
        return cls(
            threads=int(_number(given, "threads", whole=True, least=1, default=1)),
            batch_max_events=int(
                _number(given, "batch_max_events", whole=True, least=1, default=1)
            ),
            batch_max_wait_ms=_number(given, "batch_max_wait_ms", whole=False, least=0, default=0),
            environment_digest=given.get("environment_digest"),
            compiled=given.get("compiled"),
        )


@dataclass(frozen=True, slots=True)
class Job:
    """A request that waits for the worker, and the way to answer it."""

    request: Any
    sender: Any


class TritonPythonModel:
    """One instance of a model, as Triton's Python backend wants it."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the weights and answer one event, so that the first request is as fast as any.

        Args:
            args: Triton's description of the model and this instance.

        Raises:
            ServingError: The environment, the parameters or the model files do not fit.
        """
        startup = Startup()
        # Exists only inside a stub, whence the import at run time.
        self._pb: Any = importlib.import_module("triton_python_backend_utils")
        config = json.loads(args["model_config"])
        parameters = Parameters.from_config(config)
        if parameters.environment_digest is not None:
            check_environment(parameters.environment_digest, Path(sys.prefix))
        directory = Path(args["model_repository"]) / args["model_version"]
        device = choose_device(args["model_instance_kind"], args["model_instance_device_id"])
        self._runtime = Runtime.load(
            directory,
            device=device,
            threads=parameters.threads,
            compiled=parameters.compiled or own_folder(),
        )
        startup.end("weights")
        outputs = self._runtime.infer(warm_up_event(directory))
        check_outputs(config["output"], outputs)
        self._metrics = self._publish_metrics(args["model_name"], args["model_version"])
        self._worker: BatchWorker[Job] | None = None
        if parameters.batch_max_events > 1:
            self._worker = BatchWorker(
                self._answer_jobs,
                max_items=parameters.batch_max_events,
                max_wait_s=parameters.batch_max_wait_ms / 1000,
            )
        keep_imported()
        startup.end("warm-up")
        how = "compiled" if self._runtime.is_compiled else "uncompiled"
        self._pb.Logger.log_info(f"{args['model_instance_name']} {startup}; {how}")

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer requests, or hand them to the worker and return None."""
        if self._worker is None:
            return self._responses(requests)
        for request in requests:
            job = Job(request, request.get_response_sender())
            if not self._worker.submit(job):
                self._send(job, self._error("the model is being unloaded", "UNAVAILABLE"))
        return None

    def finalize(self) -> None:
        """Answer the requests that still wait; Triton calls this before it unloads the model."""
        if self._worker is not None:
            self._worker.close()
        if self._metrics is not None:
            self._metrics.close()

    def _answer_jobs(self, jobs: Sequence[Job]) -> None:
        responses = self._responses([job.request for job in jobs])
        for job, response in zip(jobs, responses, strict=True):
            self._send(job, response)

    def _send(self, job: Job, response: Any) -> None:
        final = self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            job.sender.send(response, flags=final)
        except Exception as error:  # the worker must live on, whatever one sender does
            self._log(f"a response could not be sent: {_one_line(error)}")
            try:
                # A full shared memory has no room for the answer, but for an error it has. A
                # sender whose final response did get through refuses this second one.
                job.sender.send(self._error(f"no response: {_one_line(error)}"), flags=final)
            except Exception as second:
                self._log(f"a request stays without response: {_one_line(second)}")

    def _responses(self, requests: Sequence[Any]) -> list[Any]:
        """Return one response per request, in their order; never raises."""
        responses: list[Any] = [None] * len(requests)
        events: dict[int, Event] = {}
        for index, request in enumerate(requests):
            try:
                # To ask is to wait for the server, which hands over no request that is cancelled:
                # only one that has waited here can have been.
                if self._worker is not None and request.is_cancelled():
                    responses[index] = self._error("the request was cancelled", "CANCELLED")
                else:
                    events[index] = Event.from_tensors(
                        {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
                    )
            except Exception as error:
                responses[index] = self._failure(error)
        for index, result in self._infer(events).items():
            responses[index] = self._response(requests[index], result)
        return responses

    def _infer(self, events: Mapping[int, Event]) -> dict[int, Outputs | Exception]:
        """Run events as one batch; should it fail, each alone to find those that fail."""
        if not events:
            return {}
        try:
            batch = self._runtime.infer_batch(list(events.values()))
            results: dict[int, Outputs | Exception] = dict(zip(events, batch.outputs, strict=True))
        except Exception as error:
            if len(events) == 1:
                return dict.fromkeys(events, error)
            alone: dict[int, Outputs | Exception] = {}
            for index, event in events.items():
                alone.update(self._infer({index: event}))
            return alone
        hits = sum(len(event.hits) for event in events.values())
        if self._metrics is not None:
            self._metrics.count_batch(
                events=len(events),
                hits=hits,
                preprocess_s=batch.preprocess_s,
                network_s=batch.network_s,
            )
        return results

    def _response(self, request: Any, result: Outputs | Exception) -> Any:
        if isinstance(result, Exception):
            return self._failure(result)
        try:
            return self._pb.InferenceResponse(
                output_tensors=[
                    self._pb.Tensor(name, np.ascontiguousarray(result[name]))
                    for name in request.requested_output_names()
                ]
            )
        except Exception as error:
            return self._failure(error)

    def _failure(self, error: Exception) -> Any:
        if isinstance(error, EventError):
            if self._metrics is not None:
                self._metrics.count_rejected()
            return self._error(str(error), "INVALID_ARG")
        if not isinstance(error, ServingError):  # not foreseen: the log tells where it happened
            self._log("".join(traceback.format_exception(error)))
        return self._error(f"the event could not be processed: {_one_line(error)}")

    def _error(self, message: str, code: str = "INTERNAL") -> Any:
        error = self._pb.TritonError(message, getattr(self._pb.TritonError, code))
        return self._pb.InferenceResponse(error=error)

    def _publish_metrics(self, model: str, version: str) -> Metrics | None:
        def failed(error: Exception) -> None:
            self._log(f"metrics are no longer counted: {_one_line(error)}")

        try:
            return Metrics(self._pb, {"model": model, "version": version}, failed)
        except Exception as error:  # a server may run with --allow-metrics=false
            self._pb.Logger.log_warn(f"{model} publishes no metrics: {_one_line(error)}")
            return None

    def _log(self, message: str) -> None:
        self._pb.Logger.log_error(message)


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
        found = f"none ({ENVIRONMENT_FILE} is unreadable: {_one_line(error)})"
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
    """Return torch's name of the device that Triton gave to this instance.

    Args:
        kind: ``model_instance_kind``: GPU, or anything else for the CPU.
        device_id: ``model_instance_device_id``.

    Raises:
        ModelFilesError: It is a GPU and this environment's torch cannot use one, or finds none.
    """
    if kind != "GPU":
        return "cpu"
    if torch.version.cuda is None:
        raise ModelFilesError(
            f"the instance is of KIND_GPU but torch {torch.__version__} cannot use a GPU: "
            "deploy with the GPU environment or set KIND_CPU in config.pbtxt's instance_group"
        )
    if not torch.cuda.is_available():
        raise ModelFilesError(
            f"the instance is of KIND_GPU but torch {torch.__version__} for CUDA "
            f"{torch.version.cuda} finds no GPU that it can use: the host's driver is too old for "
            "it (nvidia-smi), or the server was given no GPU (CUDA_VISIBLE_DEVICES)"
        )
    return f"cuda:{device_id}"


def warm_up_event(directory: Path) -> Event:
    """Return the model's golden event, or an event without hits where it has none.

    Raises:
        ModelFilesError: The golden event cannot be read.
    """
    path = directory / GOLDEN_FILE
    if path.exists():
        return read_event(path)
    return Event.from_tensors({name: np.empty(0, dtype) for name, dtype in INPUT_TENSORS})


def check_outputs(declared: Sequence[Mapping[str, Any]], outputs: Outputs) -> None:
    """Check that the network gives what the configuration declares.

    Only a last dimension that is fixed is compared: it is the number of classes. Leading ones
    may differ (configurations in use declare ``e_evt`` as [4], the answer is [1, 4]).

    Raises:
        ModelFilesError: An output is missing or has another number of classes.
    """
    for output in declared:
        name = output["name"]
        if name not in outputs:
            raise ModelFilesError(
                f"config.pbtxt declares output {name} but these weights give only "
                f"{', '.join(sorted(outputs))}: remove it from config.pbtxt"
            )
        wanted, shape = int(output["dims"][-1]), outputs[name].shape
        if wanted not in (-1, shape[-1]):
            raise ModelFilesError(
                f"config.pbtxt declares {wanted} as the last dimension of output {name} but "
                f"these weights give {shape[-1]}: correct its dims in config.pbtxt"
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
            f"parameter {name} in config.pbtxt is {text!r}: a {kind} of at least {least} is needed"
        )
    return value


def _one_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
