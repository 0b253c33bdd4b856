"""Whether a service does what its clients rely on, asked from outside through one port.

Over gRPC nothing but gRPC is asked: an endpoint that speaks only gRPC over TLS may answer any
HTTP path with 200.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deploy.client.channel import grpc_health
from deploy.client.diagnosis import why_unreachable
from deploy.client.endpoint import Endpoint
from deploy.client.errors import ClientError, NoTritonError, RequestError, ServerAwayError
from deploy.client.transport import TritonTransport, no_triton, triton_reason
from deploy.errors import KitError
from deploy.failures.table import diagnose
from deploy.repository.card import CARD_FILE, read_card
from deploy.repository.stage import VERSION, find_model
from deploy.server.contract import Signature, breach
from deploy.server.golden import GoldenEvent, difference, golden_of
from deploy.server.probe import asked_model

_LISTED = 10  # models named in a remedy


@dataclass(frozen=True)
class ExpectedModel:
    """What a model must be like.

    Attributes:
        signature: The tensors that its card names; None: it is a site's own model, which has none.
        golden: An event with its right answer; None: it has none, so values are not compared.
    """

    signature: Signature | None
    golden: GoldenEvent | None

    @classmethod
    def read(cls, repository: Path, model: str) -> ExpectedModel:
        """Read it from a model repository.

        Raises:
            RepositoryError: There is no such model, or a file of it is not usable.
        """
        folder = find_model(repository, model)
        weights = folder / VERSION
        ours = (weights / CARD_FILE).exists()
        return cls(read_card(weights).signature if ours else None, golden_of(folder))


@dataclass(frozen=True)
class Latency:
    """How long a model took, as a client sees it over a connection that is open.

    Attributes:
        requests: How many were made, one after another.
        median_s: Seconds.
        worst_s: Seconds.
    """

    requests: int
    median_s: float
    worst_s: float


@dataclass(frozen=True)
class ModelCheck:
    """What was found out about one model.

    Attributes:
        model: Its name.
        ready: Whether the server says it is ready.
        error: What is wrong, or None.
        remedy: What to do about it.
        latency: Measured if its values were compared and nothing is wrong.
    """

    model: str
    ready: bool
    error: str | None = None
    remedy: str | None = None
    latency: Latency | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.error is None


@dataclass(frozen=True)
class ServiceCheck:
    """What was found out about a service.

    Attributes:
        url: Where it was asked.
        health: Its answer to gRPC's health check; None: not asked, or it has none.
        error: What is wrong with the server as a whole, or None.
        remedy: What to do about it.
        models: Of each model; empty if the server cannot be asked.
    """

    url: str
    health: str | None = None
    error: str | None = None
    remedy: str | None = None
    models: tuple[ModelCheck, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.error is None and all(model.ok for model in self.models)


def check_service(
    endpoint: Endpoint,
    models: Mapping[str, ExpectedModel],
    *,
    timeout: float,
    repeat: int,
) -> ServiceCheck:
    """Ask a service for all that its clients rely on.

    Args:
        endpoint: Where it is.
        models: What is expected, by the models' names.
        timeout: Seconds for one answer.
        repeat: Inferences of each model.
    """
    transport = TritonTransport(endpoint, timeout=timeout)
    try:
        ready = transport.server_ready()
        if not ready:
            _check_is_triton(transport)
        health = None
        if endpoint.protocol == "grpc":
            health = grpc_health(endpoint, timeout=timeout)
        checks = tuple(
            _check_model(transport, endpoint, model, expected, repeat)
            for model, expected in models.items()
        )
        error = remedy = None
        if not ready or health == "not serving":
            error = f"{endpoint.url}: the server says it is not ready"
            remedy = _why_not_ready(transport)
        return ServiceCheck(endpoint.url, health, error, remedy, checks)
    except KitError as error:
        told = _diagnosed(endpoint, error, timeout)
        return ServiceCheck(endpoint.url, error=told.cause, remedy=told.remedy)
    finally:
        transport.close()


def _check_is_triton(transport: TritonTransport) -> None:
    """Raise NoTritonError if it is another web server: that knows no readiness endpoint either."""
    with suppress(RequestError, ServerAwayError):  # a Triton may keep it closed, or be ending
        transport.server_name()


def _diagnosed(endpoint: Endpoint, error: KitError, timeout: float) -> KitError:
    """Return what is behind a first call's failure."""
    if isinstance(error, ClientError):
        return error
    known = why_unreachable(endpoint, timeout=timeout)
    if known is not None:
        return known
    if isinstance(error, RequestError):
        return ClientError(f"{endpoint.url}: {error.cause}", error.remedy)
    return error


def _check_model(
    transport: TritonTransport,
    endpoint: Endpoint,
    model: str,
    expected: ExpectedModel,
    repeat: int,
) -> ModelCheck:
    golden, ready = expected.golden, False
    try:
        ready = transport.model_ready(model)
        if not ready:
            return _not_ready(transport, endpoint, model)
        if expected.signature is not None:
            broken = breach(_signature(transport, endpoint, model), expected.signature)
            if broken is not None:
                return ModelCheck(
                    model,
                    ready,
                    f"model {model} breaks the wire contract: {broken}",
                    "correct its config.pbtxt: existing clients cannot ask it as it is",
                )
        if golden is None:
            return ModelCheck(model, ready)
        served = asked_model(model, golden.inputs, tuple(golden.outputs))
        seconds = []
        for _ in range(repeat):
            started = time.perf_counter()
            answer = transport.infer(served, golden.inputs)
            seconds.append(time.perf_counter() - started)
            wrong = difference(golden, {k: v for k, v in answer.items() if v is not None})
            if wrong is not None:
                return ModelCheck(
                    model,
                    ready,
                    f"model {model} answers wrongly: {wrong}",
                    "if its weights are not the kit's: --repository DIR with their golden.npz; "
                    "else look at its weights and environment",
                )
    except NoTritonError:
        raise  # said once, for all models
    except KitError as error:
        known = diagnose(error.cause)
        remedy = error.remedy if known is None else known.remedy
        return ModelCheck(model, ready, f"model {model}: {error.cause}", remedy)
    latency = Latency(repeat, statistics.median(seconds), max(seconds))
    return ModelCheck(model, ready, latency=latency)


def _signature(transport: TritonTransport, endpoint: Endpoint, model: str) -> Signature:
    try:
        return Signature.read(transport.metadata(model), transport.configuration(model))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise no_triton(endpoint) from error


def _not_ready(transport: TritonTransport, endpoint: Endpoint, model: str) -> ModelCheck:
    """Return whether the server does not know the model, or why it is not ready."""
    index = transport.index()
    if index is None:
        return ModelCheck(
            model,
            False,
            f"model {model} is unknown to {endpoint.url}, or not ready",
            "look at the server's log; it keeps the list of its models closed",
        )
    if model not in index:
        there = ", ".join(sorted(index)[:_LISTED]) or "none"
        return ModelCheck(
            model,
            False,
            f"{endpoint.url} serves no model {model}",
            f"--models with those it serves: {there}",
        )
    state, reason = index[model]
    known = diagnose(f"failed to load '{model}' version 1: {reason}") if reason else None
    # As in "Internal: ValueError: ...", without the traceback.
    said = triton_reason(reason).partition(": ")[2] or state.lower() or "it has no version"
    return ModelCheck(
        model,
        False,
        f"model {model} is not ready: {said}",
        known.remedy if known is not None else "wait for it to be loaded, or look at the log",
    )


def _why_not_ready(transport: TritonTransport) -> str:
    waiting = [m for m, (state, _) in sorted((transport.index() or {}).items()) if state != "READY"]
    if not waiting:
        return "wait for its start, or look at its log"
    return f"look at the server's log for these models: {', '.join(waiting[:_LISTED])}"
