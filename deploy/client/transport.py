"""One connection to a Triton server, over HTTP or gRPC, with errors sorted by cause."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from deploy.client.channel import channel_options, credentials, trusted_file
from deploy.client.endpoint import Endpoint
from deploy.client.errors import ClientError, NoTritonError, RequestError, ServerAwayError
from deploy.client.events import planes_of
from deploy.errors import KitError
from deploy.server.contract import INPUTS

_CONNECT_SECONDS = 5.0
_UNAVAILABLE = ("StatusCode.UNAVAILABLE", "502", "503", "504")
_PROXY_STATUS = re.compile(r"Received http2 header with status: (\d+)")
_NO_GRPC = "Data frame with END_STREAM flag received"  # an answer without gRPC's own ending
_UNREADABLE = "an exception occurred in the client while decoding"  # an error that is not JSON
_RESTRICTED = "This protocol is restricted"  # said with UNAVAILABLE
_UNKNOWN_MODEL = "unknown model"
_NOT_SERVING = re.compile(
    rf"Stub process .* is not healthy|{_UNKNOWN_MODEL}|not at ready state|^Model .* is not ready"
)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as its server describes it.

    Attributes:
        name: As in the model repository.
        inputs: Triton data types by tensor name.
        outputs: The names of the output tensors.
        parameters: Of the model's configuration; none where the server keeps it closed.
        optional: The inputs that a request may lack.
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
        """The name, and what the configuration's parameter ``weights`` says of the weights."""
        weights = self.parameters.get("weights", "")
        return f"{self.name} ({weights})" if weights else self.name

    def classes(self, kind: Literal["semantic", "event"], count: int) -> tuple[str, ...]:
        """Return ``count`` class names: the configuration's, or class_0, class_1, ..."""
        named = [c.strip() for c in self.parameters.get(f"{kind}_classes", "").split(",")]
        if len(named) == count and all(named):
            return tuple(named)
        return tuple(f"class_{i}" for i in range(count))


class Transport(Protocol):
    """What sends one event after another; used by one thread."""

    def describe(self, model: str) -> ServedModel:
        """Return the model's description."""

    def infer(self, model: ServedModel, tensors: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Return the outputs by name."""

    def close(self) -> None:
        """Close the connection."""


class TritonTransport:
    """A connection through tritonclient; used by one thread.

    Args:
        endpoint: Where the server is.
        timeout: Seconds a request may take.
    """

    def __init__(self, endpoint: Endpoint, *, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        if endpoint.protocol == "http":
            import tritonclient.http as library
        else:
            import tritonclient.grpc as library
        self._library: Any = library
        self._client: Any = None

    def describe(self, model: str) -> ServedModel:
        """Return the model's description.

        Raises:
            ClientError: The server serves no such model.
            ServerAwayError: The server cannot be reached.
        """
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
            return ServedModel(
                model,
                MappingProxyType({i["name"]: i["datatype"] for i in metadata["inputs"]}),
                tuple(o["name"] for o in metadata["outputs"]),
                MappingProxyType(
                    {k: v.get("string_value", "") for k, v in config.get("parameters", {}).items()}
                ),
                _optional(metadata, config),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise no_triton(self._endpoint) from error

    def metadata(self, model: str) -> Any:
        """Return what the server says about the model's tensors, as JSON.

        Raises:
            RequestError: The server refuses to say.
            ServerAwayError: It cannot be reached, or serves no such model just now.
        """
        return self._call("get_model_metadata", model, **self._as_json())

    def configuration(self, model: str) -> Any:
        """Return the model's configuration, as JSON; empty where the server keeps it closed.

        Raises:
            ServerAwayError: The server cannot be reached, or serves no such model just now.
        """
        try:
            answer = self._call("get_model_config", model, **self._as_json())
        except (RequestError, ClientError):
            return {}
        return answer.get("config", answer) if isinstance(answer, dict) else answer

    def index(self) -> dict[str, tuple[str, str]] | None:
        """Return state and reason of each model in the server's repository.

        Returns:
            By the models' names: ``READY`` or another of Triton's states, and why. None
            where the server keeps its list closed.

        Raises:
            ServerAwayError: The server cannot be reached.
        """
        try:
            answer = self._call("get_model_repository_index", **self._as_json())
        except (RequestError, ClientError):
            return None
        models = answer.get("models", ()) if isinstance(answer, dict) else answer
        return {m["name"]: (m.get("state", ""), m.get("reason", "")) for m in models}

    def server_ready(self) -> bool:
        """Return whether the server says it is live and ready.

        Raises:
            ServerAwayError: The server cannot be reached.
        """
        options = self._deadline()
        return bool(
            self._call("is_server_live", **options) and self._call("is_server_ready", **options)
        )

    def server_name(self) -> str:
        """Return what the server calls itself (``--id``).

        Raises:
            ServerAwayError: The server cannot be reached.
        """
        return str(self._call("get_server_metadata", **self._as_json()).get("name"))

    def model_ready(self, model: str) -> bool:
        """Return whether the server says the model is ready.

        Raises:
            ServerAwayError: The server cannot be reached.
        """
        return bool(self._call("is_model_ready", model, **self._deadline()))

    def infer(self, model: ServedModel, tensors: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Return the outputs by name.

        Tensors are sent in the types the server declares; those it does not ask for are left
        out, and optional ones that are not there.

        Raises:
            RequestError: The server refused the event, or its answer is no tensor.
            ServerAwayError: The connection is lost, or the model is not served.
        """
        from tritonclient.utils import triton_to_np_dtype

        inputs = []
        for name, datatype in model.inputs.items():
            if name not in tensors:
                if name in model.optional:
                    continue
                raise RequestError(f"model {model.name} asks for {name}, which the file lacks")
            values = tensors[name].astype(triton_to_np_dtype(datatype), copy=False)
            tensor = self._library.InferInput(name, values.shape, datatype)
            tensor.set_data_from_numpy(np.ascontiguousarray(values))
            inputs.append(tensor)
        outputs = [self._library.InferRequestedOutput(name) for name in model.outputs]
        result = self._call("infer", model.name, inputs, outputs=outputs, **self._deadline())
        arrays = {}
        for name in model.outputs:
            try:
                arrays[name] = result.as_numpy(name)
            except (ValueError, TypeError, KeyError) as error:
                raise RequestError(_undecodable(name, error)) from error
        return arrays

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _deadline(self) -> dict[str, Any]:
        """Return the option for one call; HTTP connections are given theirs when made."""
        return {"client_timeout": self._timeout} if self._endpoint.protocol == "grpc" else {}

    def _as_json(self) -> dict[str, Any]:
        """Return the options for a call that is to be answered as JSON, as HTTP always does."""
        return {"as_json": True, **self._deadline()} if self._endpoint.protocol == "grpc" else {}

    def _connect(self) -> Any:
        endpoint = self._endpoint
        if endpoint.protocol == "grpc":
            return self._library.InferenceServerClient(
                endpoint.address,
                creds=credentials(endpoint),
                channel_args=channel_options(endpoint.tls),
            )
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

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        started = time.monotonic()
        try:
            if self._client is None:
                self._client = self._connect()
            return getattr(self._client, method)(*arguments, **options)
        except Exception as error:  # the libraries below raise their own, undocumented kinds
            from tritonclient.utils import InferenceServerException

            sorted_error = self._sorted(error, time.monotonic() - started)
            if isinstance(sorted_error, ServerAwayError) or not isinstance(
                error, InferenceServerException
            ):
                # A new connection next time: this one may be half closed, or still
                # bring the answer that came too late.
                self.close()
            raise sorted_error from error

    def _sorted(self, error: Exception, elapsed: float) -> KitError:
        from tritonclient.utils import InferenceServerException

        url = self._endpoint.url
        if isinstance(error, InferenceServerException):
            status, text = str(error.status() or ""), triton_reason(error.message())
            if status == "StatusCode.DEADLINE_EXCEEDED":
                return RequestError(f"no answer within {self._timeout:g} s (--timeout)")
            proxy = _PROXY_STATUS.search(text)
            if proxy is not None:
                return _proxy_in_the_way(url, proxy[1])
            if _NO_GRPC in text or status == "StatusCode.UNIMPLEMENTED":
                return no_triton(self._endpoint)
            away = status in _UNAVAILABLE and _RESTRICTED not in text
            if away or _NOT_SERVING.search(text):
                return ServerAwayError(f"{url}: {text}")
            if status == "404" and _UNREADABLE in text:
                return no_triton(self._endpoint)
            return RequestError(text)
        if isinstance(error, TimeoutError) and elapsed >= self._timeout:
            return RequestError(f"no answer within {self._timeout:g} s (--timeout)")
        text = _line(error) or type(error).__name__
        if "Expected HTTP" in text:
            scheme = "grpc" if self._endpoint.tls is None else "grpcs"
            return ClientError(
                f"{url} answers, but not in HTTP",
                f"gRPC has its own port: --url {scheme}://{self._endpoint.address}",
            )
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            # What came is not JSON; a certificate's error is of both kinds.
            return no_triton(self._endpoint)
        return ServerAwayError(f"{url}: {text}")


def _optional(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> frozenset[str]:
    """Return the inputs that a request may lack; a closed configuration does not tell."""
    if not config:
        return frozenset(i["name"] for i in metadata["inputs"]) - INPUTS.keys()
    return frozenset(i["name"] for i in config.get("input", ()) if i.get("optional"))


def _proxy_in_the_way(url: str, status: str) -> KitError:
    """Return the error for an HTTP status in place of an answer to a gRPC call."""
    cause = f"{url}: a proxy answers with HTTP status {status} and passes no gRPC on"
    if status in ("502", "503", "504"):
        return ServerAwayError(cause, "look at the server behind the proxy")
    if status == "400":
        return ClientError(cause, "if it wants a client certificate: --cert FILE --key FILE")
    return ClientError(cause, "ask its administrator where, and for whom, it passes gRPC on")


def no_triton(endpoint: Endpoint) -> NoTritonError:
    """Return the error for a server that answers, but not as Triton does."""
    if endpoint.protocol == "http":
        return NoTritonError(
            f"{endpoint.url} answers, but this is not Triton's HTTP port",
            "check the port in --url: Triton's are 8000 (HTTP), 8001 (gRPC), 8002 (metrics)",
        )
    return NoTritonError(
        f"{endpoint.url} does not answer like a Triton server",
        "check the address in --url (gRPC has its own port)",
    )


def triton_reason(message: str) -> str:
    """Return what a Triton error says in one line, without its wrapping and traceback."""
    text = message.split("\n\nAt:")[0]
    text = re.sub(r"^.*Failed to process the request\(s\) for model '?[^,]*, message: ", "", text)
    return re.sub(r"^(EventError|TritonModelException): ", "", _line(text))


def _undecodable(output: str, error: Exception) -> str:
    """Return, in one line, what is wrong with an output that tritonclient cannot decode."""
    # Triton 24.10's Python backend sends a numpy 2 array's shape, and none of its values.
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
