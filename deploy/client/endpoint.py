"""A server's address, its TLS files, and how to open a gRPC connection to it."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from deploy.deployment.state import host_port, is_loopback
from deploy.host.errors import DeploymentError

ProtocolName = Literal["http", "grpc"]
_SCHEMES = ("http", "https", "grpc", "grpcs")
_PORTS = {("http", False): 8000, ("http", True): 443, ("grpc", False): 8001, ("grpc", True): 443}
# gRPC's own pause between attempts grows to two minutes; a restarted server is back sooner. A host
# that hangs, or is cut off, closes no connection: while a request is on its way, the server is
# asked whether it is there. Triton takes it for abuse if that happens much more often.
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # its name in later releases
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 2000),
)

# Debian's and Ubuntu's, Red Hat's, and SUSE's, as clients/cpp/src/channel.cpp has them.
_HOST_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The client's side of TLS, as PEM files; ``ca`` None: the system's authorities."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address: ``host:port``, for HTTP also ``host:port/base/path``; None: no TLS."""

    protocol: ProtocolName
    address: str
    tls: ClientTls | None = None

    @property
    def url(self) -> str:
        return f"{self.protocol}{'s' if self.tls else ''}://{self.address}"

    @property
    def host(self) -> str:
        """The host, without the brackets of an IPv6 address."""
        return urlsplit(f"//{self.address}").hostname or ""

    @property
    def is_local(self) -> bool:
        """Whether it is a loopback address, behind which no proxy comes."""
        with suppress(ValueError):  # a name
            return is_loopback(self.host)
        return self.host == "localhost"

    @property
    def port(self) -> int:
        return urlsplit(f"//{self.address}").port or _PORTS[self.protocol, self.tls is not None]

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        protocol: ProtocolName | None = None,
        tls: bool = False,
        ca: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
    ) -> Endpoint:
        """Read ``[http[s]://|grpc[s]://]host[:port]``.

        Without a scheme, a file for TLS implies TLS. Defaults: HTTP, or ``protocol``, and Triton's
        port 8000 or 8001, with TLS 443.
        """
        scheme, separator, rest = url.rpartition("://")
        if separator and scheme not in _SCHEMES:
            known = ", ".join(f"{name}://" for name in _SCHEMES)
            raise DeploymentError(f"--url {url}: the scheme must be one of {known}")
        named = protocol or "http"
        if separator:
            named = "grpc" if scheme.startswith("grpc") else "http"
        if protocol is not None and named != protocol:
            raise DeploymentError(f"--url {url} contradicts --protocol {protocol}")
        files = any((ca, cert, key))
        if files and separator and not (tls or scheme.endswith("s")):
            cause = f"{url} is without TLS, but --ca, --cert and --key are for it"
            raise DeploymentError(cause, f"{scheme}s://{rest}, or leave them out")
        encrypted = tls or scheme.endswith("s") or files
        try:
            parts = urlsplit(f"//{rest}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise DeploymentError(f"--url {url}: {error}") from error
        if port == 0:
            raise DeploymentError(f"--url {url}: no server has port 0")
        if not host or not _can_be_asked(host) or any(c.isspace() or c in "@?#" for c in rest):
            raise DeploymentError(f"--url {url}: not an address", "write it as host:port")
        if parts.path.strip("/") and named == "grpc":
            raise DeploymentError(f"--url {url}: a gRPC address has no path")
        address = host_port(host, port or _PORTS[named, encrypted]) + parts.path.rstrip("/")
        return cls(named, address, client_tls(ca, cert, key) if encrypted else None)


def _can_be_asked(host: str) -> bool:
    """Return whether a host's name has labels as names have them; resolvers raise if not."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def client_tls(ca: Path | None, cert: Path | None, key: Path | None) -> ClientTls:
    from deploy.client.tls import check_authorities, check_pair  # takes long, and few need it

    if ca is not None:
        check_authorities(ca, "--ca")
    if cert is not None and key is not None:
        check_pair(cert, key, role="client")
    elif cert is not None or key is not None:
        cause = "a client certificate and its private key go together"
        raise DeploymentError(cause, "--cert FILE --key FILE")
    # They are read for each connection, and a notebook may change to another folder meanwhile.
    return ClientTls(ca and ca.absolute(), cert and cert.absolute(), key and key.absolute())


def trusted_file(endpoint: Endpoint) -> str | None:
    """Return the CA bundle to trust: the host's, not gRPC's; None: the library's own."""
    if endpoint.tls is not None and endpoint.tls.ca is not None:
        return str(endpoint.tls.ca)
    own = os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")
    if endpoint.protocol == "grpc" and own:
        return own
    known = ssl.get_default_verify_paths().cafile
    if known is None and endpoint.protocol == "grpc":
        # Python may know only a folder of them, which gRPC cannot read.
        return next((path for path in _HOST_BUNDLES if Path(path).is_file()), None)
    return known


def channel_options(endpoint: Endpoint) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = list(_OPTIONS)
    if endpoint.is_local:
        options.append(("grpc.enable_http_proxy", 0))
    tls = endpoint.tls
    if tls is not None and tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def credentials(endpoint: Endpoint) -> Any:
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


def open_channel(library: Any, endpoint: Endpoint, *more: tuple[str, Any]) -> Any:
    """Return a channel of gRPC's ``library``: ``grpc`` or ``grpc.aio``."""
    options, secret = [*channel_options(endpoint), *more], credentials(endpoint)
    if secret is None:
        return library.insecure_channel(endpoint.address, options)
    return library.secure_channel(endpoint.address, secret, options)


def grpc_health(endpoint: Endpoint, *, timeout: float) -> str | None:
    """Return a server's answer to gRPC's standard health check, such as ``not serving``.

    None without an answer, as behind a proxy that forwards Triton's own calls only.
    """
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with open_channel(grpc, endpoint) as channel:
        try:
            health = health_pb2_grpc.HealthStub(channel)
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError:
            return None
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return str(status).lower().replace("_", " ")
