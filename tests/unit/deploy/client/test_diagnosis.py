"""Why a server cannot be reached: asked of real servers on loopback, each with one fault."""

import pytest

from deploy.client.diagnosis import why_unreachable
from deploy.client.endpoint import Endpoint
from deploy.client.service import ExpectedModel, check_service
from deploy.client.transport import TritonTransport
from deploy.host.errors import ClientError, ServerAwayError
from numl_formats.contract import Signature
from tests.certificates import FAR_AHEAD, LONG_AGO, Authority, Pair
from tests.unit.deploy.client.servers import (
    Metrics,
    Website,
    grpc_server,
    http_server,
    raw_server,
)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def site(tmp_path):
    return Authority(tmp_path, "site")


@pytest.fixture
def stranger(tmp_path):
    return Authority(tmp_path, "stranger")


def told(
    url: str, ca: Authority | None = None, mine: Pair | None = None, timeout: float = 5
) -> tuple[str, str | None] | None:
    """Return cause and remedy."""
    endpoint = Endpoint.parse(
        url,
        ca=None if ca is None else ca.file,
        cert=None if mine is None else mine.cert,
        key=None if mine is None else mine.key,
    )
    error = why_unreachable(endpoint, timeout=timeout)
    if error is None:
        return None
    assert "\n" not in error.cause
    return error.cause, error.remedy


def test_nothing_is_in_the_way_of_a_server_that_can_be_reached(site):
    pair, mine = site.issue("localhost"), site.issue("me")
    with grpc_server() as port:
        assert told(f"grpc://localhost:{port}") is None
    with grpc_server(pair) as port:
        assert told(f"grpcs://localhost:{port}", site) is None
    with grpc_server(pair, site) as port:
        assert told(f"grpcs://localhost:{port}", site, mine) is None
        itself = Endpoint.parse(f"grpcs://localhost:{port}", ca=pair.cert, cert=mine.cert,
                                key=mine.key)  # fmt: skip
        assert why_unreachable(itself, timeout=5) is None
    with http_server() as port:
        assert told(f"http://localhost:{port}") is None
    with http_server(pair) as port:
        assert told(f"https://localhost:{port}", site) is None


@pytest.mark.parametrize("scheme", ["grpc", "https"])
def test_another_authority_is_told_with_the_one_that_signed(scheme, site, stranger):
    server = grpc_server if scheme == "grpc" else http_server
    scheme = "grpcs" if scheme == "grpc" else scheme
    with server(site.issue("localhost")) as port:
        assert told(f"{scheme}://localhost:{port}", stranger) == (
            f"the certificate of localhost:{port} was not issued by an authority in "
            f"{stranger.file} (its issuer: site, tests)",
            "--ca FILE with that authority's certificate",
        )
        assert told(f"{scheme}://localhost:{port}") == (
            f"the certificate of localhost:{port} was not issued by an authority that this "
            "host trusts (its issuer: site, tests)",
            "--ca FILE with that authority's certificate",
        )


def test_an_expired_certificate_is_told_with_its_date(site):
    with grpc_server(site.issue("localhost", valid=LONG_AGO)) as port:
        assert told(f"grpcs://localhost:{port}", site) == (
            f"the certificate of localhost:{port} expired on 2021-01-01 00:00 UTC",
            "have the server's administrator renew it, or set this host's clock",
        )


def test_a_certificate_of_tomorrow_is_told_with_its_date(site):
    with grpc_server(site.issue("localhost", valid=FAR_AHEAD)) as port:
        assert told(f"grpcs://localhost:{port}", site) == (
            f"the certificate of localhost:{port} is valid only from 2090-01-01 00:00 UTC",
            "check this host's clock (date)",
        )


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_name_that_is_not_in_the_certificate_is_told_with_those_that_are(site, host):
    with grpc_server(site.issue("triton.example.org", "www.example.org")) as port:
        assert told(f"grpcs://{host}:{port}", site) == (
            f"the certificate of {host}:{port} is not for {host}, "
            "but for triton.example.org, www.example.org",
            f"--url grpcs://triton.example.org:{port}",
        )


@pytest.mark.parametrize(
    ("names", "remedy"),
    [
        (["*.example.org", "::1"], "--url grpcs://[::1]:{}"),
        (["*.example.org"], "use a name that the certificate covers"),
    ],
)
def test_the_name_to_ask_by_is_one_that_can_be_asked(site, names, remedy):
    with grpc_server(site.issue(*names)) as port:
        assert told(f"grpcs://localhost:{port}", site) == (
            f"the certificate of localhost:{port} is not for localhost, but for {', '.join(names)}",
            remedy.format(port),
        )


def test_a_plaintext_port_is_told_from_one_with_tls(site):
    with grpc_server() as port:
        assert told(f"grpcs://localhost:{port}", site) == (
            f"grpcs://localhost:{port} speaks gRPC without TLS",
            f"--url grpc://localhost:{port}",
        )
    with http_server() as port:
        assert told(f"https://localhost:{port}", site) == (
            f"https://localhost:{port} speaks HTTP without TLS",
            f"--url http://localhost:{port}",
        )


@pytest.mark.parametrize("mutual", [False, True])
def test_a_port_with_tls_is_told_from_a_plaintext_one(site, mutual):
    clients = site if mutual else None
    with grpc_server(site.issue("localhost"), clients) as port:
        assert told(f"grpc://localhost:{port}") == (
            f"grpc://localhost:{port} needs TLS",
            f"--url grpcs://localhost:{port}, with --ca FILE for a site's own authority",
        )
    with http_server(site.issue("localhost"), clients) as port:
        for scheme in ("http", "grpc"):
            assert told(f"{scheme}://localhost:{port}") == (
                f"{scheme}://localhost:{port} needs TLS",
                f"--url {scheme}s://localhost:{port}, with --ca FILE for a site's own authority",
            )


def test_a_proxy_without_http2_is_told(site):
    with http_server(site.issue("localhost")) as port:
        assert told(f"grpcs://localhost:{port}", site) == (
            f"grpcs://localhost:{port} speaks TLS but not HTTP/2, which gRPC needs: "
            "an HTTP/1 proxy?",
            "enable HTTP/2 in the proxy (nginx: listen ... ssl http2, and grpc_pass)",
        )


def test_the_port_of_the_other_protocol_is_told():
    with http_server() as port:
        assert told(f"grpc://localhost:{port}") == (
            f"grpc://localhost:{port} speaks HTTP/1, not gRPC",
            "gRPC has its own port (Triton's is 8001), and needs a proxy that forwards HTTP/2",
        )
    with grpc_server() as port:
        assert told(f"http://localhost:{port}") == (
            f"http://localhost:{port} answers, but not over HTTP",
            "gRPC has its own port: use grpc://",
        )


def test_mutual_tls_without_a_client_certificate_is_told(site):
    wanted = (
        "{} closes the connection after the TLS handshake: it requires a client certificate",
        "--cert FILE --key FILE",
    )
    with grpc_server(site.issue("localhost"), site) as port:
        url = f"grpcs://localhost:{port}"
        assert told(url, site) == (wanted[0].format(url), wanted[1])
    with http_server(site.issue("localhost"), site) as port:
        url = f"https://localhost:{port}"
        assert told(url, site) == (wanted[0].format(url), wanted[1])


def test_a_client_certificate_of_a_stranger_is_told(site, stranger):
    mine = stranger.issue("me")
    for server, scheme in ((grpc_server, "grpcs"), (http_server, "https")):
        with server(site.issue("localhost"), site) as port:
            assert told(f"{scheme}://localhost:{port}", site, mine) == (
                f"{scheme}://localhost:{port} does not accept the client certificate {mine.cert}",
                "use --cert and --key of a client that the server's authority (its --tls-ca) "
                "signed",
            )


def test_a_port_where_nothing_listens_is_told():
    # Port 1 is reserved; nothing listens there.
    for scheme in ("grpc", "grpcs", "http", "https"):
        assert told(f"{scheme}://127.0.0.1:1") == (
            f"no server answers at {scheme}://127.0.0.1:1: connection refused",
            "numlkit up, or name a server with --url",
        )


def test_an_unknown_host_is_told():
    # RFC 6761 keeps this name from ever being given to anybody.
    found = told("grpcs://nobody.invalid:443")
    assert found is not None
    assert found[0].startswith(
        "no server answers at grpcs://nobody.invalid:443: the host nobody.invalid is unknown ("
    )
    assert found[1] == "check the name in --url"


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"])
@pytest.mark.parametrize(("scheme", "named"), [("grpc", "gRPC"), ("http", "HTTP")])
def test_a_port_that_speaks_something_else_is_told(says, scheme, named):
    with raw_server(says) as port:
        assert told(f"{scheme}://localhost:{port}") == (
            f"{scheme}://localhost:{port} speaks neither {named} nor TLS",
            "check address and port",
        )


def test_a_port_that_speaks_something_else_than_tls_is_told():
    with raw_server(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        assert told(f"grpcs://localhost:{port}") == (
            f"grpcs://localhost:{port}: the TLS handshake failed: wrong version number",
            "check that this is the port with TLS",
        )


def test_a_proxy_of_this_host_that_grpc_takes_is_told(site, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    with grpc_server(site.issue("localhost")) as port:
        endpoint = Endpoint.parse(f"grpcs://localhost:{port}", ca=site.file)
        transport = TritonTransport(endpoint, timeout=5)
        with pytest.raises(ServerAwayError):
            transport.server_ready()
        transport.close()
        assert told(endpoint.url, site) == (
            f"{endpoint.url} can be reached, but gRPC goes through the proxy "
            "http://127.0.0.1:1 (https_proxy)",
            'export no_proxy="${no_proxy:-$NO_PROXY},localhost"',
        )
        monkeypatch.setenv("no_proxy", "localhost")
        assert told(endpoint.url, site) is None
        with pytest.raises(ClientError, match="does not answer like a Triton server"):
            TritonTransport(endpoint, timeout=5).server_ready()


def not_triton(port: int) -> tuple[str, str]:
    return (
        f"http://127.0.0.1:{port} answers, but is not Triton's HTTP port",
        "check the port in --url: Triton's are 8000 (HTTP), 8001 (gRPC), 8002 (metrics)",
    )


@pytest.mark.parametrize("answers", [Metrics, Website])
def test_http_that_is_not_triton_s_is_told_once_and_not_for_each_model(answers):
    known = {name: ExpectedModel(Signature({}, {}), None) for name in ("nugraph2", "nugraph3")}
    with http_server(answers=answers) as port:
        endpoint = Endpoint.parse(f"http://127.0.0.1:{port}")
        check = check_service(endpoint, known, timeout=5, repeat=1)
        assert ((check.error, check.remedy), check.models) == (not_triton(port), ())


@pytest.mark.parametrize("answers", [Metrics, Website])
def test_http_that_is_not_triton_s_describes_no_model(answers):
    with http_server(answers=answers) as port:
        transport = TritonTransport(Endpoint.parse(f"http://127.0.0.1:{port}"), timeout=5)
        with pytest.raises(ClientError) as caught:
            transport.describe("nugraph3")
        transport.close()
        assert (caught.value.cause, caught.value.remedy) == not_triton(port)


def test_http_asked_of_the_grpc_port_names_the_url_to_ask_with():
    with grpc_server() as port:
        url = f"http://127.0.0.1:{port}"
        check = check_service(Endpoint.parse(url), {}, timeout=5, repeat=1)
    assert (check.error, check.remedy) == (
        f"{url} answers, but not over HTTP",
        f"gRPC has its own port: --url grpc://127.0.0.1:{port}",
    )


def test_a_server_that_keeps_silent_is_told_after_the_timeout():
    with raw_server(None) as port:
        assert told(f"grpcs://localhost:{port}", timeout=0.2) == (
            f"no server answers at grpcs://localhost:{port}: no answer within 0.2 s",
            "check address, port and firewall",
        )
