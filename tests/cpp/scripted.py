"""A server that speaks Triton's protocol and answers as a test says."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from deploy.host.paths import CHECKOUT
from tests.certificates import Authority, Pair
from tests.unit.deploy.client.servers import grpc_server

_PROCESS = """\
import sys
from tests.cpp.scripted import scripted
with scripted() as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""
Answer = Callable[[int], tuple[grpc.StatusCode, str] | None]
BUSY = (grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")
Alter = Callable[[int, service_pb2.ModelInferResponse], None]


@dataclass
class Scripted(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers the request of this number, from 0, with zeros, or with a status and its words.

    ``alter`` changes the answer of this number.
    """

    says: Answer = lambda _: None
    alter: Alter = lambda _, __: None
    requests: list[service_pb2.ModelInferRequest] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ModelInfer(  # noqa: N802
        self, request: service_pb2.ModelInferRequest, context: grpc.ServicerContext
    ) -> service_pb2.ModelInferResponse:
        self.metadata.append({m.key: m.value for m in context.invocation_metadata()})
        self.requests.append(request)
        number = len(self.requests) - 1
        refused = self.says(number)
        if refused is not None:
            context.abort(*refused)
        names = [tensor.name for tensor in request.inputs]
        sent = request.raw_input_contents[names.index("hit_table_local_plane")]
        planes = np.frombuffer(sent, dtype=np.int32)
        answer = service_pb2.ModelInferResponse(model_name=request.model_name)
        for index, plane in enumerate("uvy"):
            hits = int((planes == index).sum())
            for name, shape in ((f"x_semantic_{plane}", [hits, 5]), (f"x_filter_{plane}", [hits])):
                answer.outputs.add(name=name, datatype="FP32", shape=shape)
                answer.raw_output_contents.append(np.zeros(shape, dtype=np.float32).tobytes())
        self.alter(number, answer)
        return answer


@contextmanager
def scripted(
    says: Answer = lambda _: None,
    pair: Pair | None = None,
    clients: Authority | None = None,
    alter: Alter = lambda _, __: None,
) -> Iterator[Scripted]:
    """Serve on loopback; with ``pair`` over TLS, with ``clients`` only to those it has signed."""
    service = Scripted(says, alter)
    add = partial(service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server, service)
    with grpc_server(pair, clients, serves=add, threads=16) as service.port:
        yield service


@dataclass
class Stoppable:
    """A scripted server in a process of its own, which can be made to hang."""

    process: "subprocess.Popen[str]"
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        # The signal is sent before it is obeyed; this waits until all its threads have stopped.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)


@contextmanager
def stoppable() -> Iterator[Stoppable]:
    """Serve on loopback from another process, until the end of the context."""
    words = [sys.executable, "-c", _PROCESS]
    with subprocess.Popen(
        words, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Stoppable(process, int(process.stdout.readline()))
        finally:
            process.kill()
