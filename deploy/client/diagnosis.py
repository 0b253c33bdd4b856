"""Why a server cannot be reached, found by asking its port without a gRPC or HTTP library.

gRPC's own words do not tell a missing client certificate from a port that speaks something
else (``Socket closed``), and name neither the certificate's dates nor its names.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.request import proxy_bypass

from deploy.client.channel import trusted_file
from deploy.client.endpoint import ClientTls, Endpoint, ProtocolName
from deploy.client.errors import ClientError
from deploy.tls.certificate import Certificate, day, trusting

# What a client says first: RFC 9113, section 3.4, with an empty SETTINGS frame.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
# https://github.com/grpc/grpc/blob/master/doc/environment_variables.md
_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_SETTINGS = 4  # the type of a server's first frame, its fourth byte
_NAMES: Mapping[ProtocolName, str] = {"grpc": "gRPC", "http": "HTTP"}
_OTHER: Mapping[ProtocolName, ProtocolName] = {"grpc": "http", "http": "grpc"}
_ALPN: Mapping[ProtocolName, str] = {"grpc": "h2", "http": "http/1.1"}
_UNTRUSTED = (2, 7, 18, 19, 20, 21)  # X509_V_ERR_*: no way to an authority that is trusted
_EXPIRED, _EARLY, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64


def why_unreachable(endpoint: Endpoint, *, timeout: float) -> ClientError | None:
    """Return why no connection could be made, or None if nothing is in its way.

    Args:
        endpoint: Where the server should be.
        timeout: Seconds for one attempt.
    """
    try:
        if endpoint.tls is not None:
            found = _why_no_tls(endpoint, endpoint.tls, timeout)
        else:
            found = _why_not_plain(endpoint, timeout)
        return found or _detour(endpoint)
    except socket.gaierror as error:
        return ClientError(
            f"no server answers at {endpoint.url}: the host {endpoint.host} is unknown "
            f"({error.strerror})",
            "check the name in --url",
        )
    except ConnectionRefusedError:
        return ClientError(
            f"no server answers at {endpoint.url}: connection refused",
            "start one with: python3 deploy/up.py, or name one with --url",
        )
    except TimeoutError:
        return ClientError(
            f"no server answers at {endpoint.url}: nothing came back within {timeout:g} s",
            "check address and port, and what a firewall lets through",
        )
    except OSError as error:
        return ClientError(
            f"no server answers at {endpoint.url}: {error.strerror or error}",
            "check address and port",
        )


def _detour(endpoint: Endpoint) -> ClientError | None:
    """Return that gRPC takes the way through a proxy of this host's, if it does."""
    used = next((name for name in _PROXY_VARIABLES if os.environ.get(name)), None)
    if endpoint.protocol != "grpc" or used is None or proxy_bypass(endpoint.host):
        return None
    return ClientError(
        f"{endpoint.url} can be reached, but gRPC asks for it at the proxy {os.environ[used]} "
        f"({used})",
        f"export no_proxy={endpoint.host}",
    )


def _why_no_tls(endpoint: Endpoint, tls: ClientTls, timeout: float) -> ClientError | None:
    context = ssl.create_default_context(cafile=trusted_file(endpoint))
    if endpoint.protocol == "grpc":
        # As gRPC does: a server's own certificate may be the one to trust.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    try:
        with _encrypted(endpoint, context, timeout) as connection:
            if endpoint.protocol == "grpc" and connection.selected_alpn_protocol() != "h2":
                return _no_http2(endpoint)
            # With TLS 1.3 a server looks at the client's certificate when the handshake is
            # over for the client.
            try:
                connection.sendall(_opening(endpoint, endpoint.protocol))
                answer = connection.recv(9)
            except (ssl.SSLError, ConnectionError):
                answer = b""
    except ssl.SSLCertVerificationError as error:
        return _untrusted(endpoint, tls, error, timeout)
    except ssl.SSLError as error:
        return _no_handshake(endpoint, tls, str(error).lower(), timeout)
    return None if answer else _wants_certificate(endpoint, tls)


def _why_not_plain(endpoint: Endpoint, timeout: float) -> ClientError | None:
    answer = _plain_answer(endpoint, endpoint.protocol, timeout)
    speaks = _language(answer)
    # 400 is a proxy's way to say that it was asked in plain text where it wants TLS.
    doubtful = speaks is None or answer.startswith(b"HTTP/1.1 400")
    if doubtful and _speaks_tls(endpoint, timeout):
        return ClientError(
            f"{endpoint.url} speaks TLS, and was asked without",
            f"--url {endpoint.protocol}s://{endpoint.address}, "
            "with --ca FILE for a site's own authority",
        )
    if speaks == endpoint.protocol:
        return None
    speaks = speaks or _language(_plain_answer(endpoint, _OTHER[endpoint.protocol], timeout))
    if speaks == "grpc":
        return ClientError(
            f"{endpoint.url} answers, but not in HTTP", "gRPC has its own port: ask with grpc://"
        )
    if speaks == "http":
        return ClientError(
            f"{endpoint.url} answers in HTTP/1, not in gRPC",
            "gRPC has its own port (Triton's is 8001), and needs a proxy that passes HTTP/2 on",
        )
    return ClientError(
        f"{endpoint.url}: what listens there speaks neither {_NAMES[endpoint.protocol]} nor TLS",
        "check address and port",
    )


def _untrusted(
    endpoint: Endpoint, tls: ClientTls, error: ssl.SSLCertVerificationError, timeout: float
) -> ClientError:
    """Return what is wrong with the server's certificate."""
    at = f"the certificate of {endpoint.address}"
    seen = _certificate(endpoint, tls, timeout)
    code = error.verify_code
    if code == _EXPIRED:
        when = f"expired on {day(seen.not_after)}" if seen and seen.is_expired else "has expired"
        return ClientError(
            f"{at} {when}", "have the server's administrator renew it, or set this host's clock"
        )
    if code == _EARLY:
        when = f"from {day(seen.not_before)}" if seen and seen.is_early else "in the future"
        return ClientError(f"{at} is valid only {when}", "check this host's clock (date)")
    if code in (_OTHER_HOST, _OTHER_ADDRESS):
        names = seen.names if seen else ()
        asked = tls.server_name or endpoint.host
        remedy = "ask by a name that the certificate holds"
        for name in names:
            if "*" not in name:
                host = _bracketed(name)
                remedy = f"--url {endpoint.protocol}s://{host}:{endpoint.port}"
                break
        held = ", ".join(names) or "no host at all"
        return ClientError(f"{at} is not for {asked}, but for {held}", remedy)
    if code in _UNTRUSTED:
        trusted = f"in {tls.ca}" if tls.ca is not None else "that this host trusts"
        signer = f" (it was signed by: {seen.issuer})" if seen else ""
        return ClientError(
            f"{at} comes from none of the authorities {trusted}{signer}",
            "--ca FILE with that authority's certificate",
        )
    return ClientError(f"{at} is not valid: {error.verify_message}", "have it replaced")


def _no_handshake(endpoint: Endpoint, tls: ClientTls, words: str, timeout: float) -> ClientError:
    """Return why a handshake failed for another reason than the server's certificate."""
    if "no application protocol" in words:
        return _no_http2(endpoint)
    speaks = _language(_plain_answer(endpoint, endpoint.protocol, timeout))
    speaks = speaks or _language(_plain_answer(endpoint, _OTHER[endpoint.protocol], timeout))
    if speaks is not None and not _speaks_tls(endpoint, timeout):
        return ClientError(
            f"{endpoint.url} speaks {_NAMES[speaks]} without TLS, and was asked with",
            f"--url {speaks}://{endpoint.address}",
        )
    certificate_alerts = ("alert certificate", "alert bad certificate", "alert unknown ca")
    if any(alert in words for alert in certificate_alerts) or "handshake failure" in words:
        return _wants_certificate(endpoint, tls)
    return ClientError(
        f"{endpoint.url}: the TLS handshake failed: {_plainly(words)}",
        "check that it is this port that speaks TLS",
    )


def _wants_certificate(endpoint: Endpoint, tls: ClientTls) -> ClientError:
    if tls.cert is None:
        return ClientError(
            f"{endpoint.url} ends the connection after the TLS handshake: "
            "it wants a client certificate",
            "--cert FILE --key FILE",
        )
    return ClientError(
        f"{endpoint.url} does not accept the client certificate {tls.cert}",
        "--cert and --key of a client that the server's authority (its --tls-ca) has signed",
    )


def _no_http2(endpoint: Endpoint) -> ClientError:
    return ClientError(
        f"{endpoint.url} speaks TLS but no HTTP/2, which gRPC needs: a proxy for HTTP/1?",
        "switch HTTP/2 on in the proxy (nginx: listen ... ssl http2, and grpc_pass)",
    )


def _opening(endpoint: Endpoint, protocol: ProtocolName) -> bytes:
    """Return what a client of ``protocol`` says first."""
    if protocol == "grpc":
        return _HTTP2_PREFACE
    return (
        f"GET / HTTP/1.1\r\nHost: {_bracketed(endpoint.host)}\r\nConnection: close\r\n\r\n".encode()
    )


def _language(answer: bytes) -> ProtocolName | None:
    """Return the protocol that a server's first bytes belong to; None: neither."""
    if answer.startswith(b"HTTP/1"):
        return "http"
    # A frame begins with its length in three bytes; a first one is short.
    return "grpc" if answer[:1] == b"\0" and answer[3:4] == bytes((_SETTINGS,)) else None


def _plain_answer(endpoint: Endpoint, protocol: ProtocolName, timeout: float) -> bytes:
    """Return the first bytes that come back without TLS; none if it hangs up or keeps silent."""
    with _connected(endpoint, timeout) as connection:
        try:
            connection.sendall(_opening(endpoint, protocol))
            return connection.recv(16)
        except (ConnectionError, TimeoutError):
            return b""


def _speaks_tls(endpoint: Endpoint, timeout: float) -> bool:
    """Return whether a handshake begins, whoever is there: nothing is told to it."""
    try:
        with _encrypted(endpoint, _unjudging(), timeout):
            return True
    except ssl.SSLError as error:
        return " alert " in str(error).lower()  # only one who speaks TLS sends these
    except OSError:
        return False


def _certificate(endpoint: Endpoint, tls: ClientTls, timeout: float) -> Certificate | None:
    """Return what the server's certificate says, however little it is to be trusted."""
    blind = _unjudging()
    reading = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if tls.cert is not None:
            blind.load_cert_chain(tls.cert, tls.key)
            reading.load_cert_chain(tls.cert, tls.key)
        with _encrypted(endpoint, blind, timeout) as connection:
            found = connection.getpeercert(binary_form=True)
        if found is None:
            return None
        trusting(reading, ssl.DER_cert_to_PEM_cert(found))
        with _encrypted(endpoint, reading, timeout) as connection:
            return Certificate.of_peer(connection)
    except OSError:
        return None


def _unjudging() -> ssl.SSLContext:
    """Return a context that takes whoever answers."""
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


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _plainly(words: str) -> str:
    return words.partition("] ")[2].partition(" (_ssl")[0].replace("_", " ") or words
