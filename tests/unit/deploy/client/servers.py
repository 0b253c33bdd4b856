"""Servers that a client may meet: gRPC or HTTP, with TLS or without, Triton's or another's."""

import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress

import grpc

from tests.certificates import Authority, Pair

HTTP1 = "http/1.1"


@contextmanager
def grpc_server(
    pair: Pair | None = None,
    clients: Authority | None = None,
    *,
    serves: Callable[[grpc.Server], object] = lambda _: None,
    threads: int = 1,
) -> Iterator[int]:
    """A gRPC server: encrypted with ``pair``, and open to those alone that ``clients`` signed.

    ``serves`` gives it what it answers with.
    """
    server = grpc.server(futures.ThreadPoolExecutor(threads))
    serves(server)
    if pair is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        credentials = grpc.ssl_server_credentials(
            [(pair.key.read_bytes(), pair.cert.read_bytes())],
            clients.file.read_bytes() if clients is not None else None,
            clients is not None,
        )
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


class Metrics(http.server.BaseHTTPRequestHandler):
    """Answers as Triton's metrics port does: 200 and nothing for a path that it does not know.

    Source: ``HTTPMetricsServer::Handle`` in Triton's ``src/http_server.cc``.
    """

    protocol_version = "HTTP/1.1"
    status, page = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.page)))
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *_: object) -> None:
        pass


class Ready(Metrics):
    """Answers as a Triton that is called ``other`` and is ready."""

    def do_GET(self) -> None:
        self.page = b'{"name": "other"}' if self.path == "/v2" else b""
        super().do_GET()


class Website(Metrics):
    """Answers every path with a page that says there is no such page."""

    status, page = 404, b"<html>404</html>"


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        pass  # a client that breaks off is what is tested


@contextmanager
def http_server(
    pair: Pair | None = None, clients: Authority | None = None, answers: type[Metrics] = Metrics
) -> Iterator[int]:
    """A server for HTTP/1.1 alone, as a proxy without HTTP/2 is."""
    with _Server(("127.0.0.1", 0), answers) as server:
        if pair is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.cert, pair.key)
            context.set_alpn_protocols([HTTP1])
            if clients is not None:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(clients.file)
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


@contextmanager
def raw_server(says: bytes | None) -> Iterator[int]:
    """A server that says this to whoever asks and hangs up, or, with None, keeps silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    if says is None:
                        kept.append(connection)
                    else:
                        with connection:
                            connection.recv(1 << 16)
                            connection.sendall(says)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    for connection in kept:
        connection.close()
