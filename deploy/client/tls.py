"""TLS files: what a certificate says, and whether server and clients will accept the files."""

from __future__ import annotations

import shlex
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deploy.deployment.deployment import Tls
from deploy.host.console import as_time
from deploy.host.errors import DeploymentError
from deploy.host.files import read_most

Role = Literal["server", "client"]
# The options that name certificate and private key, and what the certificate is issued for.
_ROLES: Mapping[Role, tuple[str, str, x509.ObjectIdentifier]] = {
    "server": ("--tls-cert", "--tls-key", ExtendedKeyUsageOID.SERVER_AUTH),
    "client": ("--cert", "--key", ExtendedKeyUsageOID.CLIENT_AUTH),
}
_NAMED = (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME)
_GRPC_TIMEOUT_S = 5.0
_LARGEST = 1 << 24
# All but the first are of certificates that OpenSSL may take nonetheless.
_NO_EXTENSION = (
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    ValueError,
)
_Extension = TypeVar("_Extension", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime

    @classmethod
    def of(cls, found: x509.Certificate) -> Certificate:
        common = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        names = _extension(found, x509.SubjectAlternativeName) or ()
        return cls(
            subject=str(common[0].value) if common else _person(found.subject),
            issuer=_person(found.issuer),
            names=tuple(
                str(n.value) for n in names if isinstance(n, x509.DNSName | x509.IPAddress)
            ),
            not_before=found.not_valid_before_utc,
            not_after=found.not_valid_after_utc,
        )

    @property
    def host(self) -> str:
        """A host name that it covers, whether or not such a host exists."""
        # Without alternative names, gRPC compares the subject's.
        return self.names[0].replace("*", "any", 1) if self.names else self.subject


def check_pair(cert: Path, key: Path, *, role: Role) -> Certificate:
    """Check that a certificate and its private key are usable now; return the certificate."""
    certificate = read_pair(cert, key, role=role)
    now, end, begin = datetime.now(timezone.utc), certificate.not_after, certificate.not_before
    if end < now:
        raise DeploymentError(f"certificate {cert}: expired on {as_time(end)}", "renew it")
    if begin > now:
        cause = f"certificate {cert}: valid only from {as_time(begin)}"
        raise DeploymentError(cause, "check this host's clock (date)")
    return certificate


def read_pair(cert: Path, key: Path, *, role: Role) -> Certificate:
    """Check a certificate and its private key, except the dates; return the certificate."""
    cert_option, key_option, purpose = _ROLES[role]
    found, *others = _certificates(cert, "certificate", cert_option)
    secret = _read(key, "private key", key_option)
    try:
        private = load_pem_private_key(secret, None)
    except TypeError:
        cause = f"private key {key}: needs a passphrase, which cannot be typed when a server starts"
        remedy = f"openssl pkey -in {shlex.quote(str(key))} -out PLAIN.key; chmod 600 PLAIN.key"
        raise DeploymentError(cause, remedy) from None
    except (ValueError, UnsupportedAlgorithm):
        held = "no private key"
        if b"PRIVATE KEY-----" in secret:
            held = "a damaged private key, or one of an unknown kind,"
        elif b"BEGIN CERTIFICATE" in secret:
            held = "a certificate but no private key"
        raise DeploymentError(f"private key {key}: contains {held} in PEM form") from None
    if not _has_key(found, private.public_key()):
        cause = f"certificate {cert}: does not match the private key {key}"
        if any(_has_key(other, private.public_key()) for other in others):
            cause = f"certificate {cert}: the one of the private key {key} is not the first"
            remedy = "put it before those of the authorities, and each of them after what it signed"
            raise DeploymentError(cause, remedy)
        raise DeploymentError(cause)
    usage = _extension(found, x509.ExtendedKeyUsage)
    if usage and not {purpose, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(usage):
        raise DeploymentError(f"certificate {cert}: was not issued for a {role}")
    try:
        # OpenSSL has its own requirements, on the length of a key for example.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        raise DeploymentError(f"certificate {cert}: not usable: {reason}") from None
    return Certificate.of(found)


def check_server_files(tls: Tls) -> Certificate:
    certificate = check_pair(tls.cert, tls.key, role="server")
    refused = _why_grpc_refuses(tls, certificate.host)
    if refused is not None:
        cause = f"certificate {tls.cert}: gRPC clients reject it: {refused}"
        remedy = "use one with an RSA or ECDSA key, for the names clients ask for"
        raise DeploymentError(cause, remedy)
    if tls.ca is not None:
        check_authorities(tls.ca, "--tls-ca")
    return certificate


def check_authorities(path: Path, option: str) -> None:
    _certificates(path, "authority", option)


def _why_grpc_refuses(tls: Tls, host: str) -> str | None:
    """Return why a gRPC client would reject a gRPC server with these files, or None.

    gRPC's TLS library accepts less than others: no Python client can use an Ed25519 key.
    """
    import grpc

    chain = tls.cert.read_bytes()
    server = grpc.server(ThreadPoolExecutor(1))
    try:
        secrets = grpc.ssl_server_credentials([(tls.key.read_bytes(), chain)])
        port = server.add_secure_port("127.0.0.1:0", secrets)
        server.start()
        options = (("grpc.ssl_target_name_override", host), ("grpc.enable_http_proxy", 0))
        trusting = grpc.ssl_channel_credentials(root_certificates=chain)
        with grpc.secure_channel(f"127.0.0.1:{port}", trusting, options) as channel:
            channel.unary_unary("/none/None")(b"", timeout=_GRPC_TIMEOUT_S)
    except grpc.RpcError as error:
        # The server has no methods: an error saying so means it was reached.
        reached = error.code() is grpc.StatusCode.UNIMPLEMENTED
        return None if reached else str(error.details()).rpartition(": ")[2]
    except RuntimeError:
        return "its private key is of an unsupported kind"
    finally:
        server.stop(None)
    return None


def _certificates(path: Path, what: str, option: str) -> list[x509.Certificate]:
    text = _read(path, what, option)
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError:
        held = "a damaged certificate" if b"BEGIN CERTIFICATE" in text else "no certificate"
        raise DeploymentError(f"{what} {path}: contains {held} in PEM form") from None


def _has_key(certificate: x509.Certificate, key: object) -> bool:
    with suppress(UnsupportedAlgorithm, ValueError):
        return certificate.public_key() == key
    return False  # it is of a kind that no private key here is


def _read(path: Path, what: str, option: str) -> bytes:
    try:
        return read_most(path, _LARGEST)
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        cause = f"{what} {path}: {reason}"
        raise DeploymentError(cause, f"{option} with a readable file") from None


def _extension(found: x509.Certificate, kind: type[_Extension]) -> _Extension | None:
    """Return an extension, or None if the certificate has none or not all can be read."""
    try:
        return found.extensions.get_extension_for_class(kind).value
    except _NO_EXTENSION:
        return None


def _person(name: x509.Name) -> str:
    values = [str(a.value) for oid in _NAMED for a in name.get_attributes_for_oid(oid)[:1]]
    return ", ".join(values) or "nobody"
