"""One connection to a Triton server, over HTTP or gRPC, with errors sorted by cause."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from deploy.errors import KitError

ProtocolName = Literal["http", "grpc"]
_SCHEMES: Mapping[str, tuple[ProtocolName, bool]] = MappingProxyType(
    {
        "http": ("http", False),
        "https": ("http", True),
        "grpc": ("grpc", False),
        "grpcs": ("grpc", True),
    }
)
_PORTS = {("http", False): 8000, ("http", True): 443, ("grpc", False): 8001, ("grpc", True): 443}
_CONNECT_SECONDS = 5.0
# gRPC's own pause between attempts grows to two minutes; a restarted server is back sooner.
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
_UNAVAILABLE = ("StatusCode.UNAVAILABLE", "502", "503", "504")
_UNKNOWN_MODEL = "unknown model"
_NOT_SERVING = re.compile(
    rf"Stub process .* is not healthy|{_UNKNOWN_MODEL}|not at ready state|^Model .* is not ready"
)


class ClientError(KitError):
    """A server cannot be asked: a wrong address, no such model, no such file."""


class RequestError(KitError):
    """The server refused one event, or did not answer it."""


class ServerAwayError(KitError):
    """The connection is lost, or the model is not served just now: worth another try."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server answers.

    Attributes:
        protocol: ``http`` or ``grpc``.
        address: ``host:port``, with HTTP also ``host:port/base/path``.
        tls: Whether the connection is encrypted.
        ca: PEM file of the certificate authority; None: the system's.
    """

    protocol: ProtocolName
    address: str
    tls: bool = False
    ca: Path | None = None

    @property
    def url(self) -> str:
        """The address with its scheme."""
        return f"{self.protocol}{'s' if self.tls else ''}://{self.address}"

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        protocol: ProtocolName | None = None,
        tls: bool = False,
        ca: Path | None = None,
    ) -> Endpoint:
        """Read ``[http://|https://|grpc://|grpcs://]host[:port]``.

        Without a scheme it is HTTP, or ``protocol``; without a port it is Triton's
        8000 or 8001, with TLS 443.

        Raises:
            ClientError: It is no such address, or contradicts ``protocol``.
        """
        scheme, separator, rest = url.rpartition("://")
        if separator and scheme not in _SCHEMES:
            known = ", ".join(f"{name}://" for name in _SCHEMES)
            raise ClientError(f"--url {url}: the scheme is none of {known}")
        named, encrypted = _SCHEMES[scheme] if separator else (protocol or "http", tls)
        if protocol is not None and named != protocol:
            raise ClientError(f"--url {url} contradicts --protocol {protocol}")
        encrypted = encrypted or tls or ca is not None
        try:
            parts = urlsplit(f"//{rest}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ClientError(f"--url {url}: {error}") from error
        if not host or any(c.isspace() or c in "@?#" for c in rest):
            raise ClientError(f"--url {url}: not an address", "write it as host:port")
        if parts.path.strip("/") and named == "grpc":
            raise ClientError(f"--url {url}: a gRPC address has no path")
        if ca is not None and not ca.is_file():
            raise ClientError(f"--ca {ca}: no such file")
        bracketed = f"[{host}]" if ":" in host else host
        address = f"{bracketed}:{port or _PORTS[named, encrypted]}{parts.path.rstrip('/')}"
        return cls(named, address, encrypted, ca)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as its server describes it.

    Attributes:
        name: As in the model repository.
        inputs: Triton data types by tensor name.
        outputs: The names of the output tensors.
        parameters: Of the model's configuration; none where the server keeps it closed.
    """

    name: str
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    parameters: Mapping[str, str]

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
        grpc = self._endpoint.protocol == "grpc"
        options = {"as_json": True, **self._deadline()} if grpc else {}
        try:
            metadata = self._call("get_model_metadata", model, **options)
        except RequestError as error:
            raise ClientError(f"{self._endpoint.url}: model {model}: {error.cause}") from error
        except ServerAwayError as error:
            if _UNKNOWN_MODEL in error.cause:
                raise ClientError(f"{self._endpoint.url} serves no model {model}") from error
            raise
        try:
            config = self._call("get_model_config", model, **options)
        except RequestError:
            config = {}  # a server may keep its configuration closed
        config = config.get("config", config)
        try:
            return ServedModel(
                model,
                MappingProxyType({i["name"]: i["datatype"] for i in metadata["inputs"]}),
                tuple(o["name"] for o in metadata["outputs"]),
                MappingProxyType(
                    {k: v.get("string_value", "") for k, v in config.get("parameters", {}).items()}
                ),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ClientError(
                f"{self._endpoint.url} does not answer like a Triton server",
                "check the address, and --protocol (gRPC has its own port)",
            ) from error

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
        grpc = self._endpoint.protocol == "grpc"
        options = {"as_json": True, **self._deadline()} if grpc else {}
        return str(self._call("get_server_metadata", **options).get("name"))

    def model_ready(self, model: str) -> bool:
        """Return whether the server says the model is ready.

        Raises:
            ServerAwayError: The server cannot be reached.
        """
        return bool(self._call("is_model_ready", model, **self._deadline()))

    def infer(self, model: ServedModel, tensors: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Return the outputs by name.

        Tensors are sent in the types the server declares; those it does not ask
        for are left out.

        Raises:
            RequestError: The server refused the event, or its answer is no tensor.
            ServerAwayError: The connection is lost, or the model is not served.
        """
        from tritonclient.utils import triton_to_np_dtype

        inputs = []
        for name, datatype in model.inputs.items():
            if name not in tensors:
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

    def _connect(self) -> Any:
        endpoint = self._endpoint
        if endpoint.protocol == "grpc":
            ca = None if endpoint.ca is None else str(endpoint.ca)
            return self._library.InferenceServerClient(
                endpoint.address,
                ssl=endpoint.tls,
                root_certificates=ca,
                channel_args=list(_CHANNEL_OPTIONS),
            )
        from gevent.ssl import create_default_context  # type: ignore[import-untyped]

        return self._library.InferenceServerClient(
            endpoint.address,
            connection_timeout=min(_CONNECT_SECONDS, self._timeout),
            network_timeout=self._timeout,
            ssl=endpoint.tls,
            ssl_context_factory=lambda: create_default_context(cafile=endpoint.ca),
        )

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
            if status in _UNAVAILABLE or _NOT_SERVING.search(text):
                return ServerAwayError(f"{url}: {text}")
            return RequestError(text)
        if isinstance(error, TimeoutError) and elapsed >= self._timeout:
            return RequestError(f"no answer within {self._timeout:g} s (--timeout)")
        text = _line(error) or type(error).__name__
        if "Expected HTTP" in text:
            return ClientError(
                f"{url} answers, but not in HTTP", "gRPC has its own port: use --protocol grpc"
            )
        return ServerAwayError(f"{url}: {text}")


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
