"""One connection to a Triton server, over HTTP or gRPC, with errors classified by cause."""

from __future__ import annotations

import importlib
import random
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, Literal

from deploy.client.endpoint import Endpoint, channel_options, credentials, trusted_file
from deploy.host.errors import (
    ClientError,
    KitError,
    NoAnswerError,
    NoTritonError,
    RequestError,
    ServerAwayError,
)
from numl_formats.contract import INPUTS, planes_of
from numl_formats.inference import is_busy

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CONNECT_SECONDS = 5.0
_UNAVAILABLE = ("StatusCode.UNAVAILABLE", "502", "503", "504")
_PROXY_STATUS = re.compile(r"Received http2 header with status: (\d+)")
_NO_GRPC = "Data frame with END_STREAM flag received"  # an answer without gRPC's own ending
_UNREADABLE = "an exception occurred in the client while decoding"  # an error that is not JSON
_RESTRICTED = "This protocol is restricted"  # said with UNAVAILABLE
_UNKNOWN_MODEL = "unknown model"
_EXHAUSTED = "StatusCode.RESOURCE_EXHAUSTED"  # a front door's, of a client above its rate
_TOO_LONG = "larger than max"  # said with the same status: gRPC's own limit of a message
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_AGAIN = "try again"
_WHEN = f"{_AGAIN} in {_LONGEST_PAUSE_S:g} s"
_LESS = "fewer requests at once: a smaller --concurrency"
_AWAY = re.compile(
    rf"Stub process .* is not healthy|{_UNKNOWN_MODEL}|not at ready state|^Model .* is not ready"
    "|RST_STREAM|Stream removed|Socket closed"  # said with many a status
)


class BusyError(ServerAwayError):
    """Too many requests, of all clients or of this one: the same server is asked again later."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as its server describes it: Triton's data types of its inputs, and its outputs.

    ``parameters`` are empty if the server does not expose the configuration.
    """

    name: str
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    parameters: Mapping[str, str]
    optional: frozenset[str] = frozenset()

    @property
    def planes(self) -> tuple[str, ...]:
        """The detector's planes, in the order of ``local_plane``."""
        return planes_of(self.inputs)

    @property
    def title(self) -> str:
        """The name, with the parameter ``weights`` if there is one."""
        weights = self.parameters.get("weights", "")
        return f"{self.name} ({weights})" if weights else self.name

    def classes(self, kind: Literal["semantic", "event"], count: int) -> tuple[str, ...]:
        """Return ``count`` class names: the configuration's, or class_0, class_1, ..."""
        named = [c.strip() for c in self.parameters.get(f"{kind}_classes", "").split(",")]
        if len(named) == count and all(named):
            return tuple(named)
        return tuple(f"class_{i}" for i in range(count))


class TritonTransport:
    """A connection through tritonclient; used by one thread.

    Its calls raise ServerAwayError if the server cannot be reached or does not serve the model
    now, RequestError if it refuses, and ClientError if it is not a Triton.
    """

    def __init__(self, endpoint: Endpoint, *, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._library: Any = importlib.import_module(f"tritonclient.{endpoint.protocol}")
        self._client: Any = None

    def describe(self, model: str) -> ServedModel:
        try:
            metadata = self.metadata(model)
        except RequestError as error:
            raise ClientError(f"{self._endpoint.url}: model {model}: {error.cause}") from error
        except ServerAwayError as error:
            if _UNKNOWN_MODEL in error.cause:
                raise ClientError(f"{self._endpoint.url} serves no model {model}") from error
            raise
        config = self.configuration(model)
        try:
            inputs = {i["name"]: i["datatype"] for i in metadata["inputs"]}
            outputs = tuple(o["name"] for o in metadata["outputs"])
            optional = _optional(metadata, config)
            return ServedModel(model, inputs, outputs, _parameters(config), optional)
        except (KeyError, TypeError, AttributeError) as error:
            raise no_triton(self._endpoint) from error

    def metadata(self, model: str) -> Any:
        return self._ask("get_model_metadata", model)

    def configuration(self, model: str) -> Any:
        """Return the model's configuration as JSON; empty if the server does not expose it."""
        try:
            answer = self._ask("get_model_config", model)
        except NoAnswerError:  # that says nothing of what it exposes
            raise
        except (RequestError, ClientError):
            return {}
        return answer.get("config", answer) if isinstance(answer, dict) else answer

    def parameters(self, model: str) -> dict[str, str]:
        """Return a model's parameters; empty if the server does not expose the configuration."""
        try:
            return _parameters(self.configuration(model))
        except (TypeError, AttributeError) as error:
            raise no_triton(self._endpoint) from error

    def index(self) -> dict[str, tuple[str, str]] | None:
        """Return state (``READY``, ...) and reason of each model; None if the index is closed."""
        try:
            answer = self._ask("get_model_repository_index")
        except (RequestError, ClientError):
            return None
        models = answer.get("models", ()) if isinstance(answer, dict) else answer
        return {m["name"]: (m.get("state", ""), m.get("reason", "")) for m in models}

    def server_live(self) -> bool:
        return bool(self._call("is_server_live"))

    def server_ready(self) -> bool:
        return bool(self._call("is_server_live") and self._call("is_server_ready"))

    def server_name(self) -> str:
        """Return what the server calls itself (``--id``)."""
        return str(self._ask("get_server_metadata").get("name"))

    def model_ready(self, model: str) -> bool:
        try:
            return bool(self._call("is_model_ready", model))
        except KitError as error:
            # What Triton 26.07 says over gRPC of a model that it does not have; older ones say no.
            status = getattr(error.__cause__, "status", str)()
            if str(status) == "StatusCode.NOT_FOUND":
                return False
            raise

    def infer(
        self, model: ServedModel, tensors: Mapping[str, NDArray[Any]], **sequence: int | bool
    ) -> dict[str, Any]:
        """Return the outputs by name; inputs are converted to the types the server declares.

        A server that is too busy, or a front door that this client asks more often than it may, is
        asked again, after longer and longer pauses, until the timeout.
        ``sequence`` are tritonclient's arguments for a request of a sequence.
        """
        inputs = self._tensors(model, tensors)
        # Without named outputs the server returns all.
        answer = self._when_there_is_room("infer", model.name, inputs, **sequence)
        return _arrays(model, answer)

    def stream(
        self, model: ServedModel, tensors: Mapping[str, NDArray[Any]]
    ) -> list[dict[str, Any]]:
        """Return the outputs of each response of a decoupled model, in their order."""
        from tritonclient.utils import InferenceServerException

        if self._endpoint.protocol != "grpc":
            raise RequestError(f"model {model.name} is decoupled: it answers over gRPC only")
        answers: Queue[Any] = Queue()
        client, found = self._connect(), []
        try:
            client.start_stream(
                lambda result, error: answers.put(error or result), stream_timeout=self._timeout
            )
            inputs = self._tensors(model, tensors)
            # It raises of a stream that has failed, whose answer says why.
            with suppress(InferenceServerException):
                client.async_stream_infer(model.name, inputs, enable_empty_final_response=True)
            while True:
                answer = answers.get(timeout=self._timeout)
                if isinstance(answer, Exception):
                    raise self._sorted(answer, 0) from answer
                response = answer.get_response()
                if response.outputs:
                    found.append(_arrays(model, answer))
                if response.parameters["triton_final_response"].bool_param:
                    return found
        except Empty:
            raise NoAnswerError(f"no answer within {self._timeout:g} s (--timeout)") from None
        finally:
            client.close()

    def _tensors(self, model: ServedModel, tensors: Mapping[str, NDArray[Any]]) -> list[Any]:
        import numpy as np
        from tritonclient.utils import triton_to_np_dtype

        inputs = []
        for name, datatype in model.inputs.items():
            if name not in tensors:
                if name in model.optional:
                    continue
                raise RequestError(f"model {model.name} needs {name}, which the file lacks")
            values = tensors[name].astype(triton_to_np_dtype(datatype), copy=False)
            tensor = self._library.InferInput(name, values.shape, datatype)
            tensor.set_data_from_numpy(np.ascontiguousarray(values))
            inputs.append(tensor)
        return inputs

    def _when_there_is_room(self, method: str, *arguments: Any, **options: Any) -> Any:
        deadline, pause = time.monotonic() + self._timeout, _PAUSE_S
        while True:
            try:
                within = deadline - time.monotonic()
                return self._call(method, *arguments, within=within, **options)
            except BusyError:
                # Clients that were refused together do not come back together.
                wait = pause * random.uniform(0.5, 1.5)
                if time.monotonic() + wait > deadline:
                    raise
            time.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connect(self) -> Any:
        endpoint = self._endpoint
        if endpoint.protocol == "grpc":
            return self._library.InferenceServerClient(
                endpoint.address,
                creds=credentials(endpoint),
                channel_args=channel_options(endpoint),
            )
        from gevent.hub import GreenletExit, Hub  # type: ignore[import-untyped]

        # Or it prints a trace of the signal that ends the command.
        Hub.NOT_ERROR = (GreenletExit, SystemExit, KeyboardInterrupt)
        return self._library.InferenceServerClient(
            endpoint.address,
            connection_timeout=min(_CONNECT_SECONDS, self._timeout),
            network_timeout=self._timeout,
            ssl=endpoint.tls is not None,
            ssl_context_factory=self._https_context,
        )

    def _https_context(self) -> Any:
        from gevent.ssl import create_default_context  # type: ignore[import-untyped]

        context = create_default_context(cafile=trusted_file(self._endpoint))
        tls = self._endpoint.tls
        if tls is not None and tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
        return context

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Return an answer as JSON, the only form that HTTP has."""
        options = {"as_json": True} if self._endpoint.protocol == "grpc" else {}
        return self._when_there_is_room(method, *arguments, **options)

    def _call(
        self, method: str, *arguments: Any, within: float | None = None, **options: Any
    ) -> Any:
        started = time.monotonic()
        if self._endpoint.protocol == "grpc":  # HTTP connections have theirs from the start
            options["client_timeout"] = self._timeout if within is None else within
        try:
            if self._client is None:
                self._client = self._connect()
            return getattr(self._client, method)(*arguments, **options)
        except Exception as error:  # the libraries raise undocumented classes
            from tritonclient.utils import InferenceServerException

            told = self._sorted(error, time.monotonic() - started)
            refused = isinstance(error, InferenceServerException)
            if isinstance(told, ServerAwayError) or not refused:
                self.close()  # it may be half closed, or still deliver the late answer
            raise told from error

    def _sorted(self, error: Exception, elapsed: float) -> KitError:
        from tritonclient.utils import InferenceServerException

        url = self._endpoint.url
        if isinstance(error, InferenceServerException):
            status, text = str(error.status() or ""), triton_reason(error.message())
            if status == "StatusCode.DEADLINE_EXCEEDED":
                return NoAnswerError(f"no answer within {self._timeout:g} s (--timeout)")
            proxy = _PROXY_STATUS.search(text)
            if proxy is not None or status == "429":
                return _proxy_in_the_way(url, status if proxy is None else proxy[1])
            if _NO_GRPC in text or status == "StatusCode.UNIMPLEMENTED":
                return no_triton(self._endpoint)
            unavailable = status in _UNAVAILABLE and _RESTRICTED not in text
            above_rate = status == _EXHAUSTED and _TOO_LONG not in text
            if above_rate or (unavailable and is_busy(text)):
                # On a CPU a full queue is told in Triton's own words, which do not say when.
                when = "" if _AGAIN in text else f": {_WHEN}"
                return BusyError(f"{url}: {text}{when}", _LESS)
            if unavailable or _AWAY.search(text):
                return ServerAwayError(f"{url}: {text}")
            if status == "404" and _UNREADABLE in text:
                return no_triton(self._endpoint)
            return RequestError(text)
        if isinstance(error, TimeoutError) and elapsed >= self._timeout:
            return NoAnswerError(f"no answer within {self._timeout:g} s (--timeout)")
        text = _line(error) or type(error).__name__
        if "Expected HTTP" in text:
            scheme = "grpc" if self._endpoint.tls is None else "grpcs"
            remedy = f"gRPC has its own port: --url {scheme}://{self._endpoint.address}"
            return ClientError(f"{url} answers, but not over HTTP", remedy)
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            # The answer is not JSON; a certificate's error is of both kinds.
            return no_triton(self._endpoint)
        return ServerAwayError(f"{url}: {text}")


def _arrays(model: ServedModel, answer: Any) -> dict[str, Any]:
    arrays = {}
    for name in model.outputs:
        try:
            arrays[name] = answer.as_numpy(name)
        except (ValueError, TypeError, KeyError) as error:
            raise RequestError(_undecodable(name, error)) from error
    return arrays


def _parameters(config: Mapping[str, Any]) -> dict[str, str]:
    said = config.get("parameters", {}).items()
    return {name: value.get("string_value", "") for name, value in said}


def _optional(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> frozenset[str]:
    """Return the inputs that a request may omit; without a configuration, all but the usual."""
    if not config:
        return frozenset(i["name"] for i in metadata["inputs"]) - INPUTS.keys()
    return frozenset(i["name"] for i in config.get("input", ()) if i.get("optional"))


def _proxy_in_the_way(url: str, status: str) -> KitError:
    if status == "429":
        cause = f"{url}: a proxy answers with HTTP status 429, too many requests: {_WHEN}"
        return BusyError(cause, _LESS)
    if status in ("502", "503", "504"):
        cause = f"{url}: a proxy answers with HTTP status {status}, so it reaches no server"
        return ServerAwayError(cause, "check the servers behind the proxy")
    cause = f"{url}: a proxy answers with HTTP status {status} and does not forward gRPC"
    if status == "400":
        return ClientError(cause, "if it requires a client certificate: --cert FILE --key FILE")
    return ClientError(cause, "ask its administrator where, and for whom, it forwards gRPC")


def no_triton(endpoint: Endpoint) -> NoTritonError:
    if endpoint.protocol == "http":
        cause = f"{endpoint.url} answers, but is not Triton's HTTP port"
        remedy = "check the port in --url: Triton's are 8000 (HTTP), 8001 (gRPC), 8002 (metrics)"
        return NoTritonError(cause, remedy)
    cause = f"{endpoint.url} does not answer like a Triton server"
    return NoTritonError(cause, "check the address in --url (gRPC has its own port)")


def triton_reason(message: str) -> str:
    """Return a Triton error in one line, without its wrapping and traceback."""
    text = message.split("\n\nAt:")[0]
    text = re.sub(r"^.*Failed to process the request\(s\) for model '?[^,]*, message: ", "", text)
    return re.sub(r"^(EventError|TritonModelException): ", "", _line(text))


def _undecodable(output: str, error: Exception) -> str:
    # Triton 24.10's Python backend sends the shape of a numpy 2 array, and no values.
    empty = re.search(r"array of size 0 into shape \(([\d, ]+)\)", str(error))
    if empty is None:
        return f"output {output} cannot be decoded: {_line(error)}"
    shape = empty[1].rstrip(", ").replace(",", ", ")
    return (
        f"output {output} is empty where its shape is [{shape}], "
        "as when the server's execution environment has numpy 2"
    )


def _line(text: object) -> str:
    return " ".join(str(text).split())
