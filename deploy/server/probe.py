"""Ask a server what it is able to: health, readiness, metadata, one inference."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy.typing as npt
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from deploy.errors import DeploymentError
from deploy.server.golden import GoldenEvent, difference

Array = npt.NDArray[Any]


class UnreachableError(Exception):
    """The server does not answer."""


class Probe(Protocol):
    """What is asked of a server, whatever the protocol."""

    def server_ready(self) -> bool:
        """Return whether the server says it is live and ready."""

    def model_ready(self, model: str) -> bool:
        """Return whether the server says the model is ready."""

    def infer(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        """Return the outputs of one inference.

        Raises:
            UnreachableError: If there is no answer.
            InferenceServerException: If the answer is an error.
        """


@dataclass(frozen=True)
class SmokeResult:
    """What one smoke inference gave.

    Attributes:
        model: The model asked.
        ready: Whether the server says the model is ready.
        error: What was wrong, or None.
        seconds: How long the inference took, as the client sees it.
    """

    model: str
    ready: bool
    error: str | None
    seconds: float | None

    @property
    def ok(self) -> bool:
        """Whether the model is ready and answered rightly."""
        return self.ready and self.error is None


def smoke(probe: Probe, model: str, golden: GoldenEvent) -> SmokeResult:
    """Ask ``model`` for its golden event and compare the values."""
    try:
        if not probe.model_ready(model):
            return SmokeResult(model, ready=False, error="the model is not ready", seconds=None)
        started = time.perf_counter()
        answer = probe.infer(model, golden.inputs, tuple(golden.outputs))
        seconds = time.perf_counter() - started
    except UnreachableError as error:
        return SmokeResult(model, ready=False, error=str(error), seconds=None)
    except InferenceServerException as error:
        text = str(error.message()).splitlines()[0]
        return SmokeResult(model, ready=True, error=text, seconds=None)
    return SmokeResult(model, True, difference(golden.outputs, answer), seconds)


def open_probe(url: str, *, timeout: float = 10.0) -> Probe:
    """Return a probe for ``url`` (``http://host:port``, ``grpc://host:port``, or without scheme).

    Raises:
        DeploymentError: If the URL is none of these.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "grpc") or not parts.netloc or parts.path not in ("", "/"):
        raise DeploymentError(f"url: {url!r} is not http://host:port or grpc://host:port")
    if parts.scheme == "grpc":
        return _GrpcProbe(parts.netloc, timeout)
    return _HttpProbe(parts.netloc, timeout)


class _HttpProbe:
    def __init__(self, address: str, timeout: float) -> None:
        import tritonclient.http as client

        self._module = client
        self._address = address
        self._timeout = timeout

    def _client(self) -> Any:
        # A client for each question: a kept connection would delay the server's stop.
        return self._module.InferenceServerClient(
            self._address, connection_timeout=self._timeout, network_timeout=self._timeout
        )

    def server_ready(self) -> bool:
        try:
            with self._client() as client:
                return bool(client.is_server_live() and client.is_server_ready())
        except OSError:
            return False

    def model_ready(self, model: str) -> bool:
        try:
            with self._client() as client:
                return bool(client.is_model_ready(model))
        except OSError as error:
            raise UnreachableError(
                f"no answer from http://{self._address}: {_reason(error)}"
            ) from None

    def infer(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        tensors = [_filled(self._module.InferInput, n, a) for n, a in inputs.items()]
        asked = [self._module.InferRequestedOutput(name) for name in outputs]
        try:
            with self._client() as client:
                result = client.infer(model, tensors, outputs=asked)
        except OSError as error:
            raise UnreachableError(
                f"no answer from http://{self._address}: {_reason(error)}"
            ) from None
        return _arrays(result, outputs)


class _GrpcProbe:
    def __init__(self, address: str, timeout: float) -> None:
        import tritonclient.grpc as client

        self._module = client
        self._address = address
        self._timeout = timeout
        self._client = client.InferenceServerClient(address)

    def server_ready(self) -> bool:
        try:
            return bool(
                self._client.is_server_live(client_timeout=self._timeout)
                and self._client.is_server_ready(client_timeout=self._timeout)
            )
        except InferenceServerException:
            return False

    def model_ready(self, model: str) -> bool:
        try:
            return bool(self._client.is_model_ready(model, client_timeout=self._timeout))
        except InferenceServerException as error:
            raise UnreachableError(
                f"no answer from grpc://{self._address}: {error.message()}"
            ) from None

    def infer(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        tensors = [_filled(self._module.InferInput, n, a) for n, a in inputs.items()]
        asked = [self._module.InferRequestedOutput(name) for name in outputs]
        result = self._client.infer(model, tensors, outputs=asked, client_timeout=self._timeout)
        return _arrays(result, outputs)


def _filled(kind: Any, name: str, array: Array) -> Any:
    tensor = kind(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor


def _arrays(result: Any, outputs: Sequence[str]) -> dict[str, Array]:
    answer = {name: result.as_numpy(name) for name in outputs}
    return {name: array for name, array in answer.items() if array is not None}


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
