"""Whether PEM files can be used for TLS: told before anything is started or asked."""

from __future__ import annotations

import re
import shlex
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from deploy.deployment import Tls
from deploy.errors import DeploymentError
from deploy.tls.certificate import Certificate, day, trusting
from deploy.tls.grpc_check import why_refused

Role = Literal["server", "client"]
# The options that name certificate and private key.
_OPTIONS: Mapping[Role, tuple[str, str]] = {
    "server": ("--tls-cert", "--tls-key"),
    "client": ("--cert", "--key"),
}
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
_KEY = re.compile(r"-----BEGIN (?:\w+ )*PRIVATE KEY-----")
_LOCKED_KEY = re.compile(r"-----BEGIN ENCRYPTED PRIVATE KEY-----|^Proc-Type: 4,ENCRYPTED", re.M)


def check_pair(cert: Path, key: Path, *, role: Role) -> Certificate:
    """Check that a certificate and its private key can be used now, and return what it says.

    Args:
        cert: PEM file of the certificate, with the intermediate ones after it.
        key: PEM file of its private key.
        role: The side of a connection that the certificate is for.

    Raises:
        DeploymentError: One is not readable, not of that kind, they do not belong together,
            the certificate is not valid now, or not for that role.
    """
    certificate = read_pair(cert, key, role=role)
    if certificate.is_expired:
        raise DeploymentError(
            f"certificate {cert}: expired on {day(certificate.not_after)}", "renew it"
        )
    if certificate.is_early:
        raise DeploymentError(
            f"certificate {cert}: valid only from {day(certificate.not_before)}",
            "check this host's clock (date)",
        )
    return certificate


def read_pair(cert: Path, key: Path, *, role: Role) -> Certificate:
    """Try a certificate and its private key in a handshake with themselves, at any date.

    Args:
        cert: As for :func:`check_pair`.
        key: As for :func:`check_pair`.
        role: As for :func:`check_pair`.

    Raises:
        DeploymentError: As for :func:`check_pair`, but for the dates.
    """
    cert_option, key_option = _OPTIONS[role]
    chain = _read(cert, "certificate", cert_option)
    if _CERTIFICATE not in chain:
        raise DeploymentError(f"certificate {cert}: holds no certificate in PEM form")
    secret = _read(key, "private key", key_option)
    if not _KEY.search(secret):
        held = "a certificate, no private key" if _CERTIFICATE in secret else "no private key"
        raise DeploymentError(f"private key {key}: holds {held} in PEM form")
    if _LOCKED_KEY.search(secret):
        raise DeploymentError(
            f"private key {key}: needs a passphrase, which nobody can type at a server's start",
            f"openssl pkey -in {shlex.quote(str(key))} -out PLAIN.key; chmod 600 PLAIN.key",
        )
    try:
        return _rehearse(chain, cert, key, role)
    except ssl.SSLError as error:
        raise DeploymentError(f"certificate {cert}: {_reason(error, key, role)}") from None


def check_server_files(tls: Tls) -> Certificate:
    """Check the files by which a server encrypts, and return what its certificate says.

    Raises:
        DeploymentError: One is not usable.
    """
    certificate = check_pair(tls.cert, tls.key, role="server")
    refused = why_refused(tls.cert, tls.key, certificate.host)
    if refused is not None:
        raise DeploymentError(
            f"certificate {tls.cert}: gRPC's clients do not take it: {refused}",
            "one with an RSA or ECDSA key, for the names by which clients ask",
        )
    if tls.ca is not None:
        check_authorities(tls.ca, "--tls-ca")
    return certificate


def check_authorities(path: Path, option: str) -> None:
    """Check a file of certificates that are to be trusted.

    Args:
        path: The file.
        option: What names it on the command line.

    Raises:
        DeploymentError: It is not readable, or holds no certificate.
    """
    text = _read(path, "authority", option)
    if _CERTIFICATE not in text:
        raise DeploymentError(f"authority {path}: holds no certificate in PEM form")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except ssl.SSLError as error:
        raise DeploymentError(f"authority {path}: {_words(error)}") from None


def _read(path: Path, what: str, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise DeploymentError(
            f"{what} {path}: {reason}", f"{option} with a file that can be read"
        ) from None


def _rehearse(chain: str, cert: Path, key: Path, role: Role) -> Certificate:
    """Let a server and a client with this pair meet in memory; return what the other saw.

    Raises:
        ssl.SSLError: They do not come together.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    server.load_cert_chain(cert, key)
    if role == "client":
        client.load_cert_chain(cert, key)
    trusting(client if role == "server" else server, chain)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = list(sides)
    while waiting:
        for side in tuple(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    seen = Certificate.of_peer(sides[0] if role == "server" else sides[1])
    assert seen is not None  # it was required
    return seen


def _reason(error: ssl.SSLError, key: Path, role: Role) -> str:
    if "key values mismatch" in _words(error):
        return f"does not belong to the private key {key}"
    if isinstance(error, ssl.SSLCertVerificationError):
        if "purpose" in error.verify_message:
            return f"is not made for a {role}"
        return error.verify_message
    return f"not usable with the private key {key}: {_words(error)}"


def _words(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason without its decoration."""
    text = re.sub(r"^\[[^\]]*\] | \(_ssl\.c:\d+\)$", "", str(error.args[-1]))
    return text.lower().replace("_", " ")
