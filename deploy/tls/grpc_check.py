"""Whether gRPC itself takes a certificate.

It brings a library of its own for TLS, which takes less than others do: a server starts with an
Ed25519 key, and no client in Python ever reaches it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_TIMEOUT_S = 5.0


def why_refused(cert: Path, key: Path, host: str) -> str | None:
    """Return why a client of gRPC breaks off with a server that has this pair, or None.

    Both are of this process, on a port of the loopback that nobody is told.

    Args:
        cert: PEM file of a certificate that is valid now.
        key: PEM file of its private key.
        host: A name that the certificate is for.
    """
    import grpc

    chain = cert.read_bytes()
    server = grpc.server(ThreadPoolExecutor(1))
    try:
        secrets = grpc.ssl_server_credentials([(key.read_bytes(), chain)])
        port = server.add_secure_port("127.0.0.1:0", secrets)
        server.start()
        options = (("grpc.ssl_target_name_override", host), ("grpc.enable_http_proxy", 0))
        trusting = grpc.ssl_channel_credentials(root_certificates=chain)
        with grpc.secure_channel(f"127.0.0.1:{port}", trusting, options) as channel:
            channel.unary_unary("/none/None")(b"", timeout=_TIMEOUT_S)
    except grpc.RpcError as error:
        # The server has no methods: to be told so is to have reached it.
        reached = error.code() is grpc.StatusCode.UNIMPLEMENTED
        return None if reached else str(error.details()).rpartition(": ")[2]
    except RuntimeError:
        return "the private key is of a kind that it does not know"
    finally:
        server.stop(None)
    return None
