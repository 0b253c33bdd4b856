"""A server that speaks Triton's protocol and answers as a test says."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.certificates import Authority, Pair

Answer = Callable[[int], tuple[grpc.StatusCode, str] | None]


@dataclass
class Scripted(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers the request of this number, from 0, with zeros, or with a status and its words."""

    says: Answer = lambda _: None
    requests: list[service_pb2.ModelInferRequest] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    port: int = 0

    def ModelInfer(  # noqa: N802
        self, request: service_pb2.ModelInferRequest, context: grpc.ServicerContext
    ) -> service_pb2.ModelInferResponse:
        self.metadata.append({m.key: m.value for m in context.invocation_metadata()})
        self.requests.append(request)
        refused = self.says(len(self.requests) - 1)
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
        return answer


@contextmanager
def scripted(
    says: Answer = lambda _: None,
    pair: Pair | None = None,
    clients: Authority | None = None,
) -> Iterator[Scripted]:
    """Serve on loopback; with ``pair`` over TLS, with ``clients`` only to those it has signed."""
    service = Scripted(says)
    server = grpc.server(ThreadPoolExecutor(16))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, server)
    if pair is None:
        service.port = server.add_insecure_port("127.0.0.1:0")
    else:
        trusted = None if clients is None else clients.file.read_bytes()
        credentials = grpc.ssl_server_credentials(
            [(pair.key.read_bytes(), pair.cert.read_bytes())], trusted, clients is not None
        )
        service.port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield service
    finally:
        server.stop(None).wait()
