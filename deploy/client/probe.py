"""Ask a server for readiness and for one inference with known values."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deploy.client.endpoint import Endpoint
from deploy.client.transport import ServedModel, TritonTransport
from deploy.host.errors import ClientError, KitError, NoAnswerError, RequestError, ServerAwayError
from numl_formats.golden import GoldenEvent, difference, numbered, one_by_one, tensor_names

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Probe:
    """Probes one server, over a new connection each time: an idle one would delay its shutdown.

    Another server may have taken its port: ``identity`` is the name it must answer with. Decoupled
    models are asked at ``grpc``, if that is given.
    """

    url: str
    timeout: float = 10.0
    identity: str | None = None
    grpc: str | None = None

    def server_ready(self) -> bool:
        return self._holds(lambda asked: self.is_expected(asked) and asked.server_ready())

    def answers_itself(self) -> bool:
        """Return whether it is this server that answers, whatever the state of its models."""
        return self._holds(lambda asked: self.is_expected(asked) and asked.server_live())

    def answers(self) -> bool:
        """Return whether anything at all is answered in time."""
        return self._holds(TritonTransport.server_live)

    def _holds(self, question: Callable[[TritonTransport], bool]) -> bool:
        try:
            with self.connected() as transport:
                return question(transport)
        except KitError:
            return False

    def connected(self, url: str | None = None) -> AbstractContextManager[TritonTransport]:
        return closing(TritonTransport(Endpoint.parse(url or self.url), timeout=self.timeout))

    def is_expected(self, transport: TritonTransport) -> bool:
        return self.identity is None or self.identity == transport.server_name()


def ask_golden(transport: TritonTransport, model: str, golden: GoldenEvent) -> str | None:
    """Return how a model's answer differs from its reference output, or None."""
    from tritonclient.utils import np_to_triton_dtype

    first = one_by_one(golden.inputs)[0] if golden.is_sequence else golden.inputs
    types = {name: str(np_to_triton_dtype(array.dtype)) for name, array in first.items()}
    outputs = dict.fromkeys(tensor_names(golden.outputs).values())
    served = ServedModel(model, types, tuple(outputs), {})
    answer = answer_to(transport, served, golden.inputs, decoupled=golden.is_decoupled)
    return difference(golden, answer)


def answer_to(
    transport: TritonTransport,
    served: ServedModel,
    inputs: Mapping[str, NDArray[Any]],
    *,
    decoupled: bool,
) -> dict[str, NDArray[Any]]:
    """Return a model's answer to the inputs of a golden file, as its outputs."""
    if GoldenEvent(inputs, {}).is_sequence:
        requests, number = one_by_one(inputs), 1 + secrets.randbits(60)
        found = [
            transport.infer(
                served, request, sequence_id=number, sequence_start=n == 0,
                sequence_end=n == len(requests) - 1,
            )
            for n, request in enumerate(requests)
        ]  # fmt: skip
        answer = numbered(found)
    elif decoupled:
        answer = numbered(transport.stream(served, inputs))
    else:
        answer = transport.infer(served, inputs)
    return {name: array for name, array in answer.items() if array is not None}


@dataclass(frozen=True)
class SmokeResult:
    """The result of one smoke inference.

    ``late`` is whether a ready model gave no answer in time: it may, another time.
    """

    model: str
    ready: bool
    error: str | None
    seconds: float | None
    compared: bool = True
    late: bool = False

    @property
    def ok(self) -> bool:
        return self.ready and self.error is None

    @property
    def words(self) -> str:
        if self.error is not None:
            return self.error
        if not self.compared:
            return "ready; no golden.npz to compare with"
        return f"correct, {1e3 * (self.seconds or 0):.0f} ms"


def smoke(probe: Probe, model: str, golden: GoldenEvent | None) -> SmokeResult:
    """Compare a model's answer with its reference output; without one, only check readiness."""
    ready, late, error, seconds, url = False, False, None, None, None
    if golden is not None and golden.is_decoupled:
        url, golden = probe.grpc, golden if probe.grpc is not None else None
    try:
        with probe.connected(url) as transport:
            if not probe.is_expected(transport):
                error = "another server answers at its port"
            elif not transport.model_ready(model):
                error = "the model is not ready"
            else:
                ready = True
                if golden is not None:
                    started = time.perf_counter()
                    error = ask_golden(transport, model, golden)
                    seconds = time.perf_counter() - started
    except (ServerAwayError, ClientError) as away:
        ready, error = False, away.cause
    except RequestError as refused:
        error, late = refused.cause, isinstance(refused, NoAnswerError)
    return SmokeResult(model, ready, error, seconds, compared=golden is not None, late=late)
