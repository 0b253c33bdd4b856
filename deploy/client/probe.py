"""Ask a server for readiness and for one inference with known values."""

import time
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

from deploy.client.endpoint import Endpoint
from deploy.client.transport import ServedModel, TritonTransport
from deploy.host.errors import KitError, RequestError, ServerAwayError
from numl_formats.golden import GoldenEvent, difference


@dataclass(frozen=True)
class Probe:
    """Probes one server, over a new connection each time: an idle one would delay its shutdown.

    Another server may have taken its port: ``identity`` is the name it must answer with.
    """

    url: str
    timeout: float = 10.0
    identity: str | None = None

    def server_ready(self) -> bool:
        try:
            with self.connected() as transport:
                return self.is_expected(transport) and transport.server_ready()
        except KitError:
            return False

    def answers(self) -> bool:
        """Return whether anything at all is answered in time."""
        try:
            with self.connected() as transport:
                return transport.server_live()
        except KitError:
            return False

    def connected(self) -> AbstractContextManager[TritonTransport]:
        return closing(TritonTransport(Endpoint.parse(self.url), timeout=self.timeout))

    def is_expected(self, transport: TritonTransport) -> bool:
        return self.identity is None or self.identity == transport.server_name()


def ask_golden(transport: TritonTransport, model: str, golden: GoldenEvent) -> str | None:
    """Return how a model's answer differs from its reference output, or None."""
    from tritonclient.utils import np_to_triton_dtype

    types = {name: str(np_to_triton_dtype(array.dtype)) for name, array in golden.inputs.items()}
    served = ServedModel(model, types, tuple(golden.outputs), {})
    answer = transport.infer(served, golden.inputs)
    return difference(golden, {k: array for k, array in answer.items() if array is not None})


@dataclass(frozen=True)
class SmokeResult:
    """The result of one smoke inference."""

    model: str
    ready: bool
    error: str | None
    seconds: float | None
    compared: bool = True

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
    ready, error, seconds = False, None, None
    try:
        with probe.connected() as transport:
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
    except ServerAwayError as away:
        ready, error = False, away.cause
    except RequestError as refused:
        error = refused.cause
    return SmokeResult(model, ready, error, seconds, compared=golden is not None)
