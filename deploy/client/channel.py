"""How a gRPC connection is made: what is trusted and shown, and gRPC's own health check."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

from deploy.client.endpoint import ClientTls, Endpoint

# gRPC's own pause between attempts grows to two minutes; a restarted server is back sooner.
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
# grpc.health.v1.HealthCheckResponse: field 1 is the status, an enumeration.
_STATES = {b"": "unknown", b"\x08\x01": "serving", b"\x08\x02": "not serving"}


def trusted_file(endpoint: Endpoint) -> str | None:
    """Return the file of the authorities to trust; None: there is none, a library has its own.

    Left alone, gRPC trusts a list that it brings along and not the host's, in which a site
    has its own authority.
    """
    if endpoint.tls is not None and endpoint.tls.ca is not None:
        return str(endpoint.tls.ca)
    own = os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")
    if endpoint.protocol == "grpc" and own:
        return own
    return ssl.get_default_verify_paths().cafile


def channel_options(tls: ClientTls | None) -> list[tuple[str, Any]]:
    """Return the arguments of a channel."""
    options: list[tuple[str, Any]] = list(_OPTIONS)
    if tls is not None and tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def credentials(endpoint: Endpoint) -> Any:
    """Return the credentials of an encrypted channel, or None for plain text."""
    import grpc

    tls = endpoint.tls
    if tls is None:
        return None
    trusted = trusted_file(endpoint)
    return grpc.ssl_channel_credentials(
        root_certificates=None if trusted is None else Path(trusted).read_bytes(),
        private_key=None if tls.key is None else tls.key.read_bytes(),
        certificate_chain=None if tls.cert is None else tls.cert.read_bytes(),
    )


def grpc_health(endpoint: Endpoint, *, timeout: float) -> str | None:
    """Return what a server answers to gRPC's standard health check.

    Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md

    Returns:
        ``serving``, ``not serving`` or ``unknown``; None if it does not answer the question,
        as a proxy may that passes on Triton's own calls alone.
    """
    import grpc

    secret = credentials(endpoint)
    options = channel_options(endpoint.tls)
    if secret is None:
        channel = grpc.insecure_channel(endpoint.address, options)
    else:
        channel = grpc.secure_channel(endpoint.address, secret, options)
    with channel:
        try:
            # An empty request asks for the server as a whole.
            answer = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=timeout)
        except grpc.RpcError:
            return None
    return _STATES.get(answer, "unknown")
