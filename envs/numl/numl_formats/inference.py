"""Ask Triton over HTTP with the standard library and numpy.

Source of the protocol: KServe's predict protocol, version 2, with Triton's extensions for binary
tensors, the model's configuration and the index of the repository.
"""

from __future__ import annotations

import http.client
import json
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PAUSE_S = 0.2
_BUSY = ("Exceeds maximum queue size", "Request timeout expired")
_HEADER_LENGTH = "Inference-Header-Content-Length"
_NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_TYPES = {
    **{name.upper(): name for name in _NUMBERS},
    **{"FP16": "float16", "FP32": "float32", "FP64": "float64", "BOOL": "bool"},
}
_NAMES = {numpy: name for name, numpy in _TYPES.items()}
_BYTES, _LENGTH = "BYTES", struct.Struct("<I")


class AnswerError(Exception):
    """A server's answer is an error, or not of the protocol."""


class NoAnswerError(AnswerError):
    """No answer in time: a starting server stays silent until its models are loaded."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def error(self) -> str:
        """The server's error message, as one line."""
        try:
            text = str(json.loads(self.body)["error"])
        except (ValueError, KeyError, TypeError):
            text = f"status {self.status}"
        return text.splitlines()[0] if text else f"status {self.status}"


@dataclass(frozen=True, slots=True)
class TritonHttp:
    """A Triton's HTTP endpoint, to be asked until a deadline on the monotonic clock."""

    host: str
    port: int
    deadline: float

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Ask one question, on a new connection: an open one delays a server's stop.

        Raises:
            NoAnswerError: There is no answer in time.
        """
        left = max(self.deadline - time.monotonic(), 0.01)
        connection = http.client.HTTPConnection(self.host, self.port, timeout=left)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise NoAnswerError(f"no answer from {self.host} port {self.port}: {reason}") from None
        finally:
            connection.close()


def infer(
    server: TritonHttp,
    model: str,
    version: str,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Iterable[str],
) -> dict[str, NDArray[Any]]:
    """Return the outputs of one inference.

    Raises:
        NoAnswerError: There is no answer in time.
        AnswerError: The answer is an error, or not of the protocol. A server that is too busy is
            asked again.
    """
    import numpy as np  # takes long, and the sync agent does not infer

    data = {name: _data(np.ascontiguousarray(array)) for name, array in inputs.items()}
    question = json.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "shape": array.shape,
                    "datatype": _NAMES.get(array.dtype.name, _BYTES),
                    "parameters": {"binary_data_size": len(data[name])},
                }
                for name, array in inputs.items()
            ],
            "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in outputs],
        }
    ).encode()
    path = f"/v2/models/{model}/versions/{version}/infer"
    body, headers = b"".join([question, *data.values()]), {_HEADER_LENGTH: str(len(question))}
    while (answer := server.ask("POST", path, body, headers)).status != http.client.OK:
        if not is_busy(answer.error) or time.monotonic() + _PAUSE_S >= server.deadline:
            raise AnswerError(answer.error)
        time.sleep(_PAUSE_S)
    try:
        return dict(_tensors(answer))
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise AnswerError(f"the answer cannot be read: {error}") from None


def _data(array: NDArray[Any]) -> bytes:
    """Return a tensor as the protocol has it: words each with their length before them."""
    if array.dtype.kind not in "SOU":
        return array.tobytes()
    words = (word.encode() if isinstance(word, str) else bytes(word) for word in array.ravel())
    return b"".join(_LENGTH.pack(len(word)) + word for word in words)


def _words(content: bytes) -> Iterable[bytes]:
    place = 0
    while place < len(content):
        (length,) = _LENGTH.unpack_from(content, place)
        place += _LENGTH.size + length
        if place > len(content):
            raise ValueError("a text is cut short")
        yield content[place - length : place]


def is_busy(error: str) -> bool:
    """Return whether a server's error says that too many requests wait.

    A queue is full, or has not moved for long: the request was refused before any work on it.
    """
    return any(words in error for words in _BUSY)


def _tensors(answer: Answer) -> Iterable[tuple[str, NDArray[Any]]]:
    import numpy as np

    length = int(answer.headers[_HEADER_LENGTH])
    place = length
    for output in json.loads(answer.body[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        content = answer.body[place : place + size]
        if output["datatype"] == _BYTES:
            values = np.array(list(_words(content)), np.object_)
        else:
            values = np.frombuffer(content, _TYPES[output["datatype"]])
        # With numpy 2 a stub of Triton 24.10 sends the right shape and no values.
        yield output["name"], values.reshape(output["shape"])
        place += size
