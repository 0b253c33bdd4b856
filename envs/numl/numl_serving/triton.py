"""The glue between Triton's Python backend and the runtime.

A ``model.py`` only has to import `TritonPythonModel` from here. On a CPU requests are answered
within ``execute``, by the native library; nothing here imports torch then. On a GPU a worker thread
runs waiting requests together as one batch. Either way every request gets exactly one response,
and an error in one event goes to that event's sender alone.

`numl_serving.configuration` says what can be set in config.pbtxt.

Triton's Python backend calls ``execute`` with one request at a time where ``max_batch_size`` is 0.
On a CPU the others wait in Triton's queue: with ``dynamic_batching`` in config.pbtxt, which batches
nothing then, it drops cancelled requests, and its ``default_queue_policy`` says what it refuses.
With such a policy, Triton's batcher (2.51, and later ones) can miss that an instance has become
free; it then sleeps for half a second, unless another one becomes free meanwhile. So it needs
several instances. On a GPU, where one is best, ``execute`` takes all requests, and the limits are
applied here.

When a GPU is lost to this process, or the worker fails, each request that is held gets an error
and the process exits: Triton would keep sending it requests; whoever supervises Triton replaces it.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numl_serving.answer import Outputs
from numl_serving.batching import BatchWorker
from numl_serving.configuration import (
    Parameters,
    check_environment,
    check_tensors,
    choose_device,
    warm_up_event,
)
from numl_serving.dlpack import to_array, to_tensor
from numl_serving.errors import (
    DeviceLostError,
    EventError,
    NetworkError,
    ServingError,
    one_line,
)
from numl_serving.event import Event, check_size
from numl_serving.inherited import close_inherited_connections
from numl_serving.metrics import Metrics
from numl_serving.native import guard_arrays
from numl_serving.runtime import CPU, Runtime
from numl_serving.startup import Startup


@dataclass(slots=True)
class Job:
    """A request that waits for the worker, since and until when, and the way to answer it."""

    request: Any
    sender: Any
    since: float
    until: float
    is_answered: bool = False


class TritonPythonModel:
    """One instance of a model, as Triton's Python backend expects it."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the weights and answer one event, so that the first request is as fast as any.

        Args:
            args: Triton's description of the model and this instance.

        Raises:
            ServingError: The environment, the parameters or the model files do not fit.
        """
        startup = Startup()
        close_inherited_connections()
        # Exists only inside a stub, hence the import at run time.
        self._pb: Any = importlib.import_module("triton_python_backend_utils")
        config = json.loads(args["model_config"])
        parameters = Parameters.from_config(config)
        if parameters.guards_arrays:
            guard_arrays()
        if parameters.environment_digest is not None:
            check_environment(parameters.environment_digest, Path(sys.prefix))
        directory = Path(args["model_repository"]) / args["model_version"]
        device = choose_device(args["model_instance_kind"], args["model_instance_device_id"])
        # One thread: instances share the cores.
        self._runtime = Runtime.load(directory, device=device, threads=1, limits=parameters.limits)
        self._schema, self._max_hits = self._runtime.card.schema, parameters.max_hits
        check_tensors(config, self._runtime.card)
        startup.end("weights")
        self._runtime.infer(warm_up_event(directory, self._runtime.card))
        worker = None if device == CPU else args["model_instance_name"]
        self._metrics = self._publish_metrics(args["model_name"], args["model_version"], worker)
        self._worker: BatchWorker[Job] | None = None
        if device != CPU:
            self._worker = BatchWorker(
                self._answer_jobs,
                self._abandon,
                max_items=parameters.batch_max_events,
                max_wait_s=parameters.batch_max_wait_ms / 1000,
                most_waiting=parameters.most_waiting,
            )
        self._longest_wait_s = parameters.longest_wait_s or math.inf
        startup.end("warm-up")
        self._pb.Logger.log_info(f"{args['model_instance_name']} {startup}")

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer requests, or hand them to the worker and return None."""
        if self._worker is None:
            return self._responses(requests)
        for request in requests:
            now = time.monotonic()
            job = Job(request, request.get_response_sender(), now, self._until(request, now))
            if self._metrics is not None:
                self._metrics.count_queued()
            found = self._worker.submit(job)
            if found != "taken" and self._metrics is not None:
                self._metrics.count_taken([0])
            if found == "closed":
                self._send(job, self._error("this instance is shutting down", "UNAVAILABLE"))
            elif found == "full":
                self._send(job, self._busy("Exceeds maximum queue size"))
        return None

    def finalize(self) -> None:
        """Answer the requests still waiting; Triton calls this before it unloads the model."""
        if self._worker is not None:
            self._worker.close()
        if self._metrics is not None:
            self._metrics.close()

    def _until(self, request: Any, now: float) -> float:
        """Return when a request will have waited for too long; its sender may want less."""
        wait_s = self._longest_wait_s
        if (timeout_us := request.timeout()) > 0:
            wait_s = min(wait_s, timeout_us / 1e6)
        return now + wait_s

    def _answer_jobs(self, jobs: Sequence[Job]) -> None:
        """Answer jobs.

        Raises:
            DeviceLostError: This process can no longer answer.
        """
        now = time.monotonic()
        if self._metrics is not None:
            self._metrics.count_taken([now - job.since for job in jobs])
        for job in jobs:
            if job.until < now:
                self._send(job, self._busy("Request timeout expired"))
        jobs = [job for job in jobs if not job.is_answered]
        results = self._results([job.request for job in jobs])
        for job, result in zip(jobs, results, strict=True):
            self._send(job, self._response(job.request, result))
        for result in results:
            if isinstance(result, DeviceLostError):
                raise result

    def _abandon(self, jobs: Sequence[Job], error: BaseException) -> None:
        """Answer the remaining requests with an error, and exit this process."""
        try:
            self._log("".join(traceback.format_exception(error)))
            for job in jobs:
                if not job.is_answered:
                    self._send(
                        job, self._error(f"this instance is shutting down: {one_line(error)}")
                    )
            self._log(f"this process exits, to be replaced: {one_line(error)}")
        finally:
            os._exit(1)  # nothing less stops a stub whose main thread is inside Triton

    def _send(self, job: Job, response: Any) -> None:
        final = self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        job.is_answered = True
        try:
            job.sender.send(response, flags=final)
        except Exception as error:  # the worker must survive, whatever one sender does
            self._log(f"a response could not be sent: {one_line(error)}")
            try:
                # Full shared memory has no room for the answer, but it has for an error. A
                # sender whose final response did get through refuses this second one.
                job.sender.send(self._error(f"no response: {one_line(error)}"), flags=final)
            except Exception as second:
                self._log(f"a request is left without a response: {one_line(second)}")

    def _responses(self, requests: Sequence[Any]) -> list[Any]:
        """Return one response per request, in their order."""
        return list(map(self._response, requests, self._results(requests)))

    def _results(self, requests: Sequence[Any]) -> list[Outputs | Exception]:
        """Return outputs or error per request, in their order."""
        results: dict[int, Outputs | Exception] = {}
        events: dict[int, Event] = {}
        for index, request in enumerate(requests):
            try:
                events[index] = self._event(request)
            except Exception as error:
                results[index] = error
        if events:
            batch = self._runtime.infer_batch(list(events.values()))
            results.update(zip(events, batch.outputs, strict=True))
            answered = [n for n in events if not isinstance(results[n], Exception)]
            if answered and self._metrics is not None:
                self._metrics.count_batch(
                    events=len(answered),
                    hits=sum(events[number].num_hits for number in answered),
                    batches=batch.batches,
                    preprocess_s=batch.preprocess_s,
                    network_s=batch.network_s,
                )
        return [results[index] for index in range(len(requests))]

    def _event(self, request: Any) -> Event:
        # Asking means waiting for the server, which never hands over a cancelled request: only
        # one that has waited here can have been cancelled.
        if self._worker is not None and request.is_cancelled():
            raise _CancelledError("the request was cancelled")
        tensors = {tensor.name(): to_array(tensor) for tensor in request.inputs()}
        if self._max_hits is not None:
            check_size(tensors, self._max_hits)
        return Event.from_tensors(tensors, self._schema)

    def _response(self, request: Any, result: Outputs | Exception) -> Any:
        if isinstance(result, Exception):
            return self._failure(result)
        try:
            return self._pb.InferenceResponse(
                output_tensors=[
                    to_tensor(self._pb, name, result[name])
                    for name in request.requested_output_names()
                ]
            )
        except Exception as error:
            return self._failure(error)

    def _failure(self, error: Exception) -> Any:
        if isinstance(error, _CancelledError):
            return self._error(str(error), "CANCELLED")
        if isinstance(error, EventError):
            if self._metrics is not None:
                self._metrics.count_rejected()
            return self._error(str(error), "INVALID_ARG")
        message = str(error)
        if isinstance(error, NetworkError):
            self._log(error.details)
        elif not isinstance(error, ServingError):  # unforeseen: the log shows where it happened
            self._log("".join(traceback.format_exception(error)))
            message = one_line(error)
        return self._error(f"the event could not be processed: {message}")

    def _error(self, message: str, code: str = "INTERNAL") -> Any:
        error = self._pb.TritonError(message, getattr(self._pb.TritonError, code))
        return self._pb.InferenceResponse(error=error)

    def _busy(self, reason: str) -> Any:
        """Return a refusal in the words of Triton's own queue, which clients know."""
        again = 1.0 if math.isinf(self._longest_wait_s) else self._longest_wait_s
        return self._error(f"{reason}: try again in {again:g} s", "UNAVAILABLE")

    def _publish_metrics(self, model: str, version: str, worker: str | None) -> Metrics | None:
        def failed(error: Exception) -> None:
            self._log(f"metrics are no longer counted: {one_line(error)}")

        try:
            return Metrics(self._pb, {"model": model, "version": version}, failed, worker)
        except Exception as error:  # a server may run with --allow-metrics=false
            self._pb.Logger.log_warn(f"{model} publishes no metrics: {one_line(error)}")
            return None

    def _log(self, message: str) -> None:
        self._pb.Logger.log_error(message)


class _CancelledError(ServingError):
    """Nobody waits for the answer any more."""
