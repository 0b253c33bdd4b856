"""A small server in Triton's place: ``python -m tests.backend GRPC_PORT HTTP_PORT SECONDS``.

It takes ``SECONDS`` for an inference and makes ``WORKERS`` of them at a time, says that every model
is ready, and how many inferences it was asked for. A test of a front door needs no more.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
ANSWER_BYTES = 1 << 20
WORKERS = 16
LARGEST = [("grpc.max_receive_message_length", 1 << 25)]


@dataclass(frozen=True)
class _Handler(grpc.GenericRpcHandler):
    seconds: float
    asked: list[None] = field(default_factory=list)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method == STREAM:
            return grpc.stream_stream_rpc_method_handler(self.answer_each)
        if details.method != INFER:
            return None
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, asked: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer an ordinary request shortly, ``long`` at length, and ``busy`` as a full queue."""
        self.asked.append(None)
        time.sleep(self.seconds)
        if asked.startswith(b"busy"):
            context.abort(grpc.StatusCode.UNAVAILABLE, "exceeds maximum queue size")
        return bytes(ANSWER_BYTES) if asked.startswith(b"long") else b"right"

    def answer_each(self, asked: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer each message of a stream."""
        return (self.answer(each, context) for each in asked)


class _Ready(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def do_GET(self) -> None:
        self.say(200)

    def say(self, status: int) -> None:
        said = str(len(self.server.handler.asked)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def do_POST(self) -> None:
        """Answer, and ``busy`` as a full queue."""
        self.server.handler.asked.append(None)
        left, begin = int(self.headers["Content-Length"]), b""
        while left and (read := self.rfile.read1(left)):
            left -= len(read)
            begin = begin or read
        self.say(503 if begin.startswith(b"busy") else 200)

    def log_message(self, *_: object) -> None:
        pass


class _Http(ThreadingHTTPServer):
    handler: _Handler
    # Python's 5 let a crowd's connections keep those of a door's checks waiting until it gave up.
    request_queue_size = 1024

    def handle_error(self, *_: object) -> None:
        """Say nothing of a door that closes a connection."""


def main(grpc_port: str, http_port: str, seconds: str) -> None:
    handler = _Handler(float(seconds))
    http = _Http(("127.0.0.1", int(http_port)), _Ready)
    http.handler = handler
    threading.Thread(target=http.serve_forever, daemon=True).start()
    server = grpc.server(ThreadPoolExecutor(WORKERS), handlers=[handler], options=LARGEST)
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
