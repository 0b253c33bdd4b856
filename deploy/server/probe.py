"""Ask a server what it is able to: health, readiness, one inference with known values."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from tritonclient.utils import np_to_triton_dtype

from deploy.client.endpoint import Endpoint
from deploy.client.errors import RequestError, ServerAwayError
from deploy.client.transport import ServedModel, TritonTransport
from deploy.errors import KitError
from deploy.server.golden import GoldenEvent, difference

Array = npt.NDArray[Any]


class Probe:
    """Asks one server.

    Every question has a connection of its own: one that is kept open delays a server's stop.

    Args:
        url: ``http://``, ``https://``, ``grpc://`` or ``grpcs://`` and ``host:port``.
        timeout: Seconds for one answer.
        identity: The name the server must give; None: any. A port that another server has
            taken is answered by that other one.

    Raises:
        DeploymentError: If the URL is none of these.
    """

    def __init__(self, url: str, *, timeout: float = 10.0, identity: str | None = None) -> None:
        self._endpoint = Endpoint.parse(url)
        self._timeout = timeout
        self._identity = identity

    def server_ready(self) -> bool:
        """Return whether the server says it is live and ready, and is the one meant."""
        transport = self._open()
        try:
            return self.is_the_one_meant() and transport.server_ready()
        except KitError:
            return False
        finally:
            transport.close()

    def is_the_one_meant(self) -> bool:
        """Return whether it is not another server that answers at this address.

        Raises:
            ServerAwayError: If there is no answer.
        """
        transport = self._open()
        try:
            return self._identity in (None, transport.server_name())
        finally:
            transport.close()

    def model_ready(self, model: str) -> bool:
        """Return whether the server says the model is ready.

        Raises:
            ServerAwayError: If there is no answer.
        """
        transport = self._open()
        try:
            return transport.model_ready(model)
        finally:
            transport.close()

    def infer(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        """Return the outputs of one inference.

        Raises:
            RequestError: If the answer is an error.
            ServerAwayError: If there is no answer.
        """
        transport = self._open()
        try:
            answer = transport.infer(asked_model(model, inputs, outputs), inputs)
        finally:
            transport.close()
        return {name: array for name, array in answer.items() if array is not None}

    def _open(self) -> TritonTransport:
        return TritonTransport(self._endpoint, timeout=self._timeout)


def asked_model(model: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> ServedModel:
    """Return ``model`` as one that takes just these inputs and is asked for these outputs."""
    types = {name: str(np_to_triton_dtype(array.dtype)) for name, array in inputs.items()}
    return ServedModel(model, types, tuple(outputs), {})


@dataclass(frozen=True)
class SmokeResult:
    """What one smoke inference gave.

    Attributes:
        model: The model asked.
        ready: Whether the server says the model is ready.
        error: What was wrong, or None.
        seconds: How long the inference took, as the client sees it, connecting included.
        compared: Whether it has a golden event to be asked for.
    """

    model: str
    ready: bool
    error: str | None
    seconds: float | None
    compared: bool = True

    @property
    def ok(self) -> bool:
        """Whether the model is ready and answered rightly."""
        return self.ready and self.error is None

    @property
    def words(self) -> str:
        """What came of it, in a few words."""
        if self.error is not None:
            return self.error
        if not self.compared:
            return "ready; no golden.npz to compare with"
        return f"right, {1e3 * (self.seconds or 0):.0f} ms"


def smoke(probe: Probe, model: str, golden: GoldenEvent | None) -> SmokeResult:
    """Ask ``model`` for its golden event and compare the values.

    Args:
        probe: Asks the server.
        model: The model.
        golden: Its golden event; None: it has none, and is asked only whether it is ready.
    """
    try:
        if not probe.is_the_one_meant():
            error = "another server answers at its port"
            return SmokeResult(model, ready=False, error=error, seconds=None)
        if not probe.model_ready(model):
            return SmokeResult(model, ready=False, error="the model is not ready", seconds=None)
        if golden is None:
            return SmokeResult(model, ready=True, error=None, seconds=None, compared=False)
        started = time.perf_counter()
        answer = probe.infer(model, golden.inputs, tuple(golden.outputs))
        seconds = time.perf_counter() - started
    except ServerAwayError as error:
        return SmokeResult(model, ready=False, error=error.cause, seconds=None)
    except RequestError as error:
        return SmokeResult(model, ready=True, error=error.cause, seconds=None)
    return SmokeResult(model, True, difference(golden, answer), seconds)
