"""Where a server answers, and by which files its TLS is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit

from deploy.errors import DeploymentError
from deploy.tls.files import check_authorities, check_pair

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


@dataclass(frozen=True, slots=True)
class ClientTls:
    """What a client brings to an encrypted connection.

    Attributes:
        ca: PEM file of the certificates to trust; None: the system's.
        cert: PEM file of the client's own certificate, for mutual TLS.
        key: PEM file of its private key.
        server_name: The name that the server's certificate must hold; None: the host's.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server answers.

    Attributes:
        protocol: ``http`` or ``grpc``.
        address: ``host:port``, with HTTP also ``host:port/base/path``.
        tls: How the connection is encrypted; None: not at all.
    """

    protocol: ProtocolName
    address: str
    tls: ClientTls | None = None

    @property
    def url(self) -> str:
        """The address with its scheme."""
        return f"{self.protocol}{'s' if self.tls else ''}://{self.address}"

    @property
    def host(self) -> str:
        """The host, without the brackets of an IPv6 address."""
        return urlsplit(f"//{self.address}").hostname or ""

    @property
    def port(self) -> int:
        """The port."""
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
        """Read ``[http://|https://|grpc://|grpcs://]host[:port]``.

        Without a scheme it is HTTP, or ``protocol``; without a port it is Triton's
        8000 or 8001, with TLS 443. A file for TLS implies TLS.

        Raises:
            DeploymentError: It is no such address, or contradicts ``protocol``, or a file
                is not usable.
        """
        scheme, separator, rest = url.rpartition("://")
        if separator and scheme not in _SCHEMES:
            known = ", ".join(f"{name}://" for name in _SCHEMES)
            raise DeploymentError(f"--url {url}: the scheme is none of {known}")
        named, encrypted = _SCHEMES[scheme] if separator else (protocol or "http", tls)
        if protocol is not None and named != protocol:
            raise DeploymentError(f"--url {url} contradicts --protocol {protocol}")
        encrypted = encrypted or tls or any(file is not None for file in (ca, cert, key))
        try:
            parts = urlsplit(f"//{rest}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise DeploymentError(f"--url {url}: {error}") from error
        if not host or any(c.isspace() or c in "@?#" for c in rest):
            raise DeploymentError(f"--url {url}: not an address", "write it as host:port")
        if parts.path.strip("/") and named == "grpc":
            raise DeploymentError(f"--url {url}: a gRPC address has no path")
        bracketed = f"[{host}]" if ":" in host else host
        address = f"{bracketed}:{port or _PORTS[named, encrypted]}{parts.path.rstrip('/')}"
        return cls(named, address, client_tls(ca, cert, key) if encrypted else None)


def client_tls(ca: Path | None, cert: Path | None, key: Path | None) -> ClientTls:
    """Return what a client brings, its files checked.

    Raises:
        DeploymentError: A file is not usable, or a certificate comes without its key.
    """
    if ca is not None:
        check_authorities(ca, "--ca")
    if cert is not None and key is not None:
        check_pair(cert, key, role="client")
    elif cert is not None or key is not None:
        raise DeploymentError(
            "a client certificate and its private key belong together", "--cert FILE --key FILE"
        )
    return ClientTls(ca, cert, key)
