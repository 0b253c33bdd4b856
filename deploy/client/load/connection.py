"""Requests as bytes, sent asynchronously: a client that does not limit what it measures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.client.endpoint import Endpoint, open_channel
from deploy.client.transport import ServedModel, triton_reason
from deploy.host.errors import ClientError
from numl_formats.golden import GoldenEvent, difference

INFER = "/inference.GRPCInferenceService/ModelInfer"
LATE = "DEADLINE_EXCEEDED"
AGAIN = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", LATE)
"""The statuses of gRPC after which clients send a request again."""
_PAUSE_S = 0.25
REFUSED = "INVALID_ARGUMENT"
"""The status of an event that the server will never answer, as one that is too large."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """An event as it is sent, and what its answer must be.

    Attributes:
        content: The serialized request.
        answer: The serialized answer of a server without load; empty: not known, or refused.
    """

    content: bytes
    hits: int
    answer: bytes = b""


def as_request(model: ServedModel, tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return an event as gRPC sends it.

    Raises:
        ClientError: If the model needs an input that the event lacks.
    """
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model.name)
    for name, datatype in model.inputs.items():
        if name in tensors:
            array = np.ascontiguousarray(tensors[name])
            request.inputs.add(name=name, datatype=datatype, shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
        elif name not in model.optional:
            raise ClientError(f"model {model.name} needs {name}, which a load test cannot make up")
    return bytes(request.SerializeToString())


def is_same(answer: bytes, reference: bytes) -> bool:
    """Return whether an answer is the reference; another server's may differ by rounding."""
    if answer == reference:
        return True
    return difference(GoldenEvent({}, _outputs(reference)), _outputs(answer)) is None


def _outputs(content: bytes) -> dict[str, NDArray[Any]]:
    from tritonclient.grpc import service_pb2
    from tritonclient.utils import triton_to_np_dtype

    answer = service_pb2.ModelInferResponse.FromString(content)
    found = {}
    for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
        flat = np.frombuffer(raw, dtype=triton_to_np_dtype(output.datatype))
        found[output.name] = flat.reshape(output.shape)
    return found


class Connections:
    """Several connections to a server, used in turn; an asynchronous context manager.

    Args:
        endpoint: Its gRPC address.
    """

    def __init__(self, endpoint: Endpoint, *, count: int) -> None:
        self._endpoint, self._count = endpoint, count
        self._channels: list[Any] = []
        self._calls: list[Any] = []
        self._next = 0

    async def __aenter__(self) -> Connections:
        from grpc import aio

        for _ in range(self._count):
            channel = open_channel(aio, self._endpoint, ("grpc.use_local_subchannel_pool", 1))
            self._channels.append(channel)
            self._calls.append(channel.unary_unary(INFER))
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels:
            await channel.close()

    async def infer(self, content: bytes, deadline_s: float) -> tuple[bytes | None, str, str]:
        """Send a request; return its answer, or None, the status of gRPC and what it says."""
        from grpc import aio

        self._next = (self._next + 1) % self._count
        try:
            return await self._calls[self._next](content, timeout=deadline_s), "OK", ""
        except aio.AioRpcError as error:
            return None, error.code().name, triton_reason(error.details() or "")

    async def references(self, requests: Sequence[Request], deadline_s: float) -> list[Request]:
        """Ask for each event alone; return the requests with these answers.

        An event that the server is set to refuse stays without: it will be refused under load, too.

        Raises:
            ClientError: If there is no answer for another reason.
        """
        known: list[Request] = []
        for request in requests:
            end = time.monotonic() + deadline_s
            answer, status, text = await self.infer(request.content, deadline_s)
            while status in AGAIN and time.monotonic() < end:  # the server is not without load yet
                await asyncio.sleep(_PAUSE_S)
                answer, status, text = await self.infer(request.content, deadline_s)
            if answer is None and status != REFUSED:
                cause = f"{self._endpoint.url} does not answer an event of {request.hits:,} hits"
                raise ClientError(f"{cause}: {text or status}")
            known.append(Request(request.content, request.hits, answer or b""))
        return known
