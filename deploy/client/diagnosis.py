"""Why a server cannot be reached, found by probing its port without a gRPC or HTTP library.

gRPC reports a missing client certificate like a port that speaks something else (``Socket
closed``), and reports neither a certificate's dates nor its names.
"""

import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from ipaddress import ip_address, ip_network

from cryptography import x509

from deploy.client.endpoint import ClientTls, Endpoint, ProtocolName, trusted_file
from deploy.client.tls import Certificate
from deploy.deployment.state import host_port
from deploy.host.console import as_time
from deploy.host.errors import ClientError

# What a client says first: RFC 9113, section 3.4, with an empty SETTINGS frame.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
# https://github.com/grpc/grpc/blob/master/doc/environment_variables.md
_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXEMPTIONS = ("no_grpc_proxy", "no_proxy")
_SETTINGS = 4  # the type of a server's first frame, its fourth byte
_NAMES: Mapping[ProtocolName, str] = {"grpc": "gRPC", "http": "HTTP"}
_OTHER: Mapping[ProtocolName, ProtocolName] = {"grpc": "http", "http": "grpc"}
_ALPN: Mapping[ProtocolName, str] = {"grpc": "h2", "http": "http/1.1"}
_UNTRUSTED = (2, 7, 18, 19, 20, 21)  # X509_V_ERR_*: no path to a trusted authority
_REJECTED = re.compile("alert (bad )?certificate|alert unknown ca|handshake failure")
_EXPIRED, _EARLY, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64


def why_unreachable(endpoint: Endpoint, *, timeout: float) -> ClientError | None:
    """Return why no connection can be made, or None if it can; ``timeout`` (s) is per attempt."""
    no_server = f"no server answers at {endpoint.url}"
    try:
        if endpoint.tls is not None:
            found = _why_no_tls(endpoint, endpoint.tls, timeout)
        else:
            found = _why_not_plain(endpoint, timeout)
        return found or _detour(endpoint)
    except socket.gaierror as error:
        unknown = f"the host {endpoint.host} is unknown ({error.strerror})"
        return ClientError(f"{no_server}: {unknown}", "check the name in --url")
    except ConnectionRefusedError:
        remedy = "numlkit up, or name a server with --url"
        return ClientError(f"{no_server}: connection refused", remedy)
    except TimeoutError:
        remedy = "check address, port and firewall"
        return ClientError(f"{no_server}: no answer within {timeout:g} s", remedy)
    except OSError as error:
        return ClientError(f"{no_server}: {error.strerror or error}", "check address and port")


def _detour(endpoint: Endpoint) -> ClientError | None:
    """Return an error if gRPC goes through a proxy set on this host."""
    used = next((name for name in _PROXY_VARIABLES if name in os.environ), "")
    proxy = os.environ.get(used)
    if not proxy or endpoint.protocol != "grpc" or endpoint.is_local or _is_exempt(endpoint.host):
        return None
    proxy = proxy.rpartition("@")[2]  # without a password
    cause = f"{endpoint.url} can be reached, but gRPC goes through the proxy {proxy} ({used})"
    return ClientError(
        cause, f'export no_grpc_proxy="${{no_grpc_proxy-$no_proxy}},{endpoint.host}"'
    )


def _is_exempt(host: str) -> bool:
    """Return whether gRPC asks no proxy for a host; NO_PROXY and asterisks mean nothing to it."""
    exempt = next((os.environ[name] for name in _EXEMPTIONS if name in os.environ), "")
    for entry in filter(None, map(str.strip, exempt.split(","))):
        if host.endswith(entry.lower()):
            return True
        with suppress(ValueError):
            if ip_address(host) in ip_network(entry, strict=False):
                return True
    return False


def _why_no_tls(endpoint: Endpoint, tls: ClientTls, timeout: float) -> ClientError | None:
    trusted = trusted_file(endpoint)
    try:
        context = ssl.create_default_context(cafile=trusted)
    except OSError as error:
        cause = f"the authorities to trust cannot be read: {trusted}: {error.strerror or error}"
        return ClientError(cause, "--ca FILE, or a file in GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")
    if endpoint.protocol == "grpc":
        # Like gRPC: a server's own certificate may be the trusted one.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    try:
        with _encrypted(endpoint, context, timeout) as connection:
            if endpoint.protocol == "grpc" and connection.selected_alpn_protocol() != "h2":
                return _no_http2(endpoint)
            # With TLS 1.3 a server checks the client's certificate after the client's side of
            # the handshake is over.
            try:
                connection.sendall(_opening(endpoint, endpoint.protocol))
                answer = connection.recv(9)
            except (ssl.SSLError, ConnectionError):
                answer = b""
    except ssl.SSLCertVerificationError as error:
        return _untrusted(endpoint, tls, error, timeout)
    except ssl.SSLError as error:
        return _no_handshake(endpoint, tls, str(error).lower(), timeout)
    if answer:
        return None
    grpc = replace(endpoint, protocol="grpc", address=host_port(endpoint.host, endpoint.port))
    if endpoint.protocol == "http" and _why_no_tls(grpc, tls, timeout) is None:
        cause = f"{endpoint.url} answers, but not over HTTP"
        return ClientError(cause, f"gRPC has its own port: --url {grpc.url}")
    return _wants_certificate(endpoint, tls)


def _why_not_plain(endpoint: Endpoint, timeout: float) -> ClientError | None:
    answer = _plain_answer(endpoint, endpoint.protocol, timeout)
    speaks = _language(answer)
    # A proxy may answer 400 where it wants TLS.
    doubtful = speaks is None or answer.startswith(b"HTTP/1.1 400")
    if doubtful and _speaks_tls(endpoint, timeout):
        url = f"{endpoint.protocol}s://{endpoint.address}"
        remedy = f"--url {url}, with --ca FILE for a site's own authority"
        return ClientError(f"{endpoint.url} needs TLS", remedy)
    if speaks == endpoint.protocol:
        return None
    speaks = speaks or _language(_plain_answer(endpoint, _OTHER[endpoint.protocol], timeout))
    if speaks == "grpc":
        cause = f"{endpoint.url} answers, but not over HTTP"
        return ClientError(cause, "gRPC has its own port: use grpc://")
    if speaks == "http":
        remedy = "gRPC has its own port (Triton's is 8001), and needs a proxy that forwards HTTP/2"
        return ClientError(f"{endpoint.url} speaks HTTP/1, not gRPC", remedy)
    cause = f"{endpoint.url} speaks neither {_NAMES[endpoint.protocol]} nor TLS"
    return ClientError(cause, "check address and port")


def _untrusted(
    endpoint: Endpoint, tls: ClientTls, error: ssl.SSLCertVerificationError, timeout: float
) -> ClientError:
    seen, now = certificate_of(endpoint, timeout=timeout), datetime.now(timezone.utc)
    cause, remedy = f"is not valid: {error.verify_message}", "have it replaced"
    if error.verify_code == _EXPIRED:
        cause = "has expired"
        if seen and seen.not_after < now:
            cause = f"expired on {as_time(seen.not_after)}"
        remedy = "have the server's administrator renew it, or set this host's clock"
    elif error.verify_code == _EARLY:
        when = "in the future"
        if seen and seen.not_before > now:
            when = f"from {as_time(seen.not_before)}"
        cause, remedy = f"is valid only {when}", "check this host's clock (date)"
    elif error.verify_code in (_OTHER_HOST, _OTHER_ADDRESS):
        names = seen.names if seen else ()
        asked, held = tls.server_name or endpoint.host, ", ".join(names) or "no host at all"
        cause = f"is not for {asked}, but for {held}"
        remedy = "use a name that the certificate covers"
        host = next((name for name in names if "*" not in name), None)
        if host is not None:
            remedy = f"--url {endpoint.protocol}s://{host_port(host, endpoint.port)}"
    elif error.verify_code in _UNTRUSTED:
        trusted = f"in {tls.ca}" if tls.ca is not None else "that this host trusts"
        signer = f" (its issuer: {seen.issuer})" if seen else ""
        cause = f"was not issued by an authority {trusted}{signer}"
        remedy = "--ca FILE with that authority's certificate"
    return ClientError(f"the certificate of {endpoint.address} {cause}", remedy)


def _no_handshake(endpoint: Endpoint, tls: ClientTls, words: str, timeout: float) -> ClientError:
    """Return why a handshake failed for a reason other than the server's certificate."""
    if "no application protocol" in words:
        return _no_http2(endpoint)
    speaks = _language(_plain_answer(endpoint, endpoint.protocol, timeout))
    speaks = speaks or _language(_plain_answer(endpoint, _OTHER[endpoint.protocol], timeout))
    if speaks is not None and not _speaks_tls(endpoint, timeout):
        cause = f"{endpoint.url} speaks {_NAMES[speaks]} without TLS"
        return ClientError(cause, f"--url {speaks}://{endpoint.address}")
    if _REJECTED.search(words):
        return _wants_certificate(endpoint, tls)
    # As in "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)".
    reason = words.partition("] ")[2].partition(" (_ssl")[0].replace("_", " ") or words
    cause = f"{endpoint.url}: the TLS handshake failed: {reason}"
    return ClientError(cause, "check that this is the port with TLS")


def _wants_certificate(endpoint: Endpoint, tls: ClientTls) -> ClientError:
    if tls.cert is None:
        return ClientError(
            f"{endpoint.url} closes the connection after the TLS handshake: "
            "it requires a client certificate",
            "--cert FILE --key FILE",
        )
    return ClientError(
        f"{endpoint.url} does not accept the client certificate {tls.cert}",
        "use --cert and --key of a client that the server's authority (its --tls-ca) signed",
    )


def _no_http2(endpoint: Endpoint) -> ClientError:
    return ClientError(
        f"{endpoint.url} speaks TLS but not HTTP/2, which gRPC needs: an HTTP/1 proxy?",
        "enable HTTP/2 in the proxy (nginx: listen ... ssl http2, and grpc_pass)",
    )


def _opening(endpoint: Endpoint, protocol: ProtocolName) -> bytes:
    if protocol == "grpc":
        return _HTTP2_PREFACE
    host = host_port(endpoint.host, endpoint.port)
    return f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()


def _language(answer: bytes) -> ProtocolName | None:
    """Return the protocol of a server's first bytes, if any."""
    if answer.startswith(b"HTTP/1"):
        return "http"
    # A frame begins with its length in three bytes; the first one is short.
    return "grpc" if answer[:1] == b"\0" and answer[3:4] == bytes((_SETTINGS,)) else None


def _plain_answer(endpoint: Endpoint, protocol: ProtocolName, timeout: float) -> bytes:
    """Return the first bytes of the answer without TLS; none if there is no answer."""
    with _connected(endpoint, timeout) as connection:
        try:
            connection.sendall(_opening(endpoint, protocol))
            return connection.recv(16)
        except (ConnectionError, TimeoutError):
            return b""


def _speaks_tls(endpoint: Endpoint, timeout: float) -> bool:
    try:
        with _encrypted(endpoint, _unjudging(), timeout):
            return True
    except ssl.SSLError as error:
        return " alert " in str(error).lower()  # which only TLS sends
    except OSError:
        return False


def certificate_of(endpoint: Endpoint, *, timeout: float) -> Certificate | None:
    """Return the server's certificate, trusted or not; None if it presents none."""
    tls, context = endpoint.tls, _unjudging()
    if tls is None:
        return None
    try:
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
        with _encrypted(endpoint, context, timeout) as connection:
            found = connection.getpeercert(binary_form=True)
        return Certificate.of(x509.load_der_x509_certificate(found)) if found else None
    except (OSError, ValueError):
        return None


def _unjudging() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@contextmanager
def _encrypted(
    endpoint: Endpoint, context: ssl.SSLContext, timeout: float
) -> Iterator[ssl.SSLSocket]:
    context.set_alpn_protocols([_ALPN[endpoint.protocol]])
    name = endpoint.host if endpoint.tls is None else endpoint.tls.server_name or endpoint.host
    with (
        _connected(endpoint, timeout) as raw,
        context.wrap_socket(raw, server_hostname=name) as connection,
    ):
        yield connection


def _connected(endpoint: Endpoint, timeout: float) -> socket.socket:
    return socket.create_connection((endpoint.host, endpoint.port), timeout)
