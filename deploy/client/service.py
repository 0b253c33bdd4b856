"""Whether a service does what its clients rely on, as seen from outside through one port.

A gRPC endpoint is checked by gRPC alone: one that speaks only gRPC over TLS may answer 200 to any
HTTP path.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deploy.client.diagnosis import why_unreachable
from deploy.client.endpoint import Endpoint, grpc_health
from deploy.client.probe import ask_golden
from deploy.client.transport import TritonTransport, no_triton, triton_reason
from deploy.host.errors import ClientError, KitError, NoTritonError, RequestError, ServerAwayError
from deploy.host.failures import diagnose
from deploy.triton.card import read_card
from deploy.triton.golden import golden_of
from deploy.triton.stage import VERSION, find_model
from numl_formats.contract import Signature, breach
from numl_formats.golden import GoldenEvent
from numl_formats.repository import CARD_FILE
from numl_formats.watched import State

_WRONG_VALUES = (
    "if its weights are not the kit's: --repository DIR with their golden.npz; "
    "otherwise check its weights and environment"
)
_LISTED = 10  # models named in a remedy


@dataclass(frozen=True)
class ExpectedModel:
    """What is expected of a model: the tensors on its card, if any, and its reference output."""

    signature: Signature | None
    golden: GoldenEvent | None

    @classmethod
    def read(cls, repository: Path, model: str) -> ExpectedModel:
        folder = find_model(repository, model)
        weights = folder / VERSION
        ours = (weights / CARD_FILE).exists()
        return cls(read_card(weights).signature if ours else None, golden_of(folder))


@dataclass(frozen=True)
class Latency:
    """The time in seconds that a model took, as seen by a client with an open connection."""

    requests: int
    median_s: float
    worst_s: float


@dataclass(frozen=True)
class ModelCheck:
    """The state of one model; ``wrong``: it answers, but incorrectly."""

    model: str
    ready: bool
    error: str | None = None
    remedy: str | None = None
    latency: Latency | None = None
    wrong: bool = False

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def state(self) -> State:
        if self.ok:
            return "unjudged" if self.latency is None else "right"
        if self.wrong:
            return "wrong"
        return "failing" if self.ready else "unready"


@dataclass(frozen=True)
class ServiceCheck:
    """The state of a service; without models if it cannot be reached.

    ``ready`` is what the server reports.
    """

    url: str
    ready: bool = False
    health: str | None = None
    error: str | None = None
    remedy: str | None = None
    models: tuple[ModelCheck, ...] = ()

    @property
    def ok(self) -> bool:
        return self.error is None and all(model.ok for model in self.models)


def check_service(
    endpoint: Endpoint,
    models: Mapping[str, ExpectedModel],
    *,
    timeout: float,
    repeat: int,
    identity: str | None = None,
) -> ServiceCheck:
    """Check everything that clients rely on, with ``repeat`` inferences of each model.

    Another server may have taken a port: ``identity`` is the name it must answer with.
    """
    transport = TritonTransport(endpoint, timeout=timeout)
    try:
        ready = transport.server_ready()
        if identity is not None and transport.server_name() != identity:
            cause = f"{endpoint.url}: another server answers there"
            raise ClientError(cause, "numlkit status with the same --name says why")
        if not ready:
            # Raises NoTritonError for another web server, which has no readiness endpoint either.
            # A Triton may keep its name to itself, or be stopping.
            with suppress(RequestError, ServerAwayError):
                transport.server_name()
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
        return ServiceCheck(endpoint.url, ready, health, error, remedy, checks)
    except KitError as error:
        told = _diagnosed(endpoint, error, timeout)
        return ServiceCheck(endpoint.url, error=told.cause, remedy=told.remedy)
    finally:
        transport.close()


def _diagnosed(endpoint: Endpoint, error: KitError, timeout: float) -> KitError:
    if isinstance(error, ClientError):
        return error
    known = why_unreachable(endpoint, timeout=timeout)
    if known is not None:
        return known
    if isinstance(error, RequestError):
        return ClientError(f"{endpoint.url}: {error.cause}", error.remedy)
    return error


def _check_model(
    transport: TritonTransport, endpoint: Endpoint, model: str, expected: ExpectedModel, repeat: int
) -> ModelCheck:
    golden, ready = expected.golden, False
    try:
        ready = transport.model_ready(model)
        if not ready:
            return ModelCheck(model, ready, *_why_model_not_ready(transport, endpoint, model))
        if expected.signature is not None:
            broken = breach(_signature(transport, endpoint, model), expected.signature)
            if broken is not None:
                error = f"model {model} breaks the wire contract: {broken}"
                remedy = "correct its config.pbtxt: existing clients cannot use it"
                return ModelCheck(model, ready, error, remedy, wrong=True)
        # A decoupled model's answers are streams, which only gRPC has.
        if golden is None or (golden.is_decoupled and endpoint.protocol != "grpc"):
            return ModelCheck(model, ready)
        seconds = []
        for _ in range(repeat):
            started = time.perf_counter()
            wrong = ask_golden(transport, model, golden)
            seconds.append(time.perf_counter() - started)
            if wrong is not None:
                error = f"model {model} gives wrong answers: {wrong}"
                return ModelCheck(model, ready, error, _WRONG_VALUES, wrong=True)
    except NoTritonError:
        raise  # reported once, for all models
    except KitError as failed:
        known = diagnose(failed.cause)
        advice = failed.remedy if known is None else known.remedy
        return ModelCheck(model, ready, f"model {model}: {failed.cause}", advice)
    latency = Latency(repeat, statistics.median(seconds), max(seconds))
    return ModelCheck(model, ready, latency=latency)


def _signature(transport: TritonTransport, endpoint: Endpoint, model: str) -> Signature:
    try:
        return Signature.read(transport.metadata(model), transport.configuration(model))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise no_triton(endpoint) from error


def _why_model_not_ready(
    transport: TritonTransport, endpoint: Endpoint, model: str
) -> tuple[str, str | None]:
    index = transport.index()
    if index is None:
        error = f"{endpoint.url} does not serve model {model}, or it is not ready"
        return error, "it does not list its models: read the server's log"
    if model not in index:
        there = ", ".join(sorted(index)[:_LISTED]) or "none"
        error = f"{endpoint.url} serves no model {model}"
        return error, f"choose from those it serves with --models: {there}"
    state, reason = index[model]
    known = diagnose(f"failed to load '{model}' version 1: {reason}") if reason else None
    # As in "Internal: ValueError: ...", without the traceback.
    said = triton_reason(reason).partition(": ")[2] or state.lower() or "it has no version"
    remedy = known.remedy if known is not None else "wait until it is loaded, or read the log"
    return f"model {model} is not ready: {said}", remedy


def _why_not_ready(transport: TritonTransport) -> str:
    waiting = [m for m, (state, _) in sorted((transport.index() or {}).items()) if state != "READY"]
    if not waiting:
        return "wait until it has started, or read its log"
    return f"check the server's log for these models: {', '.join(waiting[:_LISTED])}"
