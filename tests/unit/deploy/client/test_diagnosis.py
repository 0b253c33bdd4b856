"""Why a server cannot be reached: asked of real servers on loopback, each with one fault."""

import subprocess
from contextlib import closing

import pytest

from deploy.client.diagnosis import why_unreachable
from deploy.client.endpoint import Endpoint
from deploy.client.service import ExpectedModel, check_service
from deploy.client.transport import TritonTransport
from deploy.host.errors import ClientError, ServerAwayError
from numl_formats.contract import Signature
from tests.certificates import FAR_AHEAD, LONG_AGO, Authority, Pair
from tests.unit.deploy.client.servers import Metrics, Website, grpc_server, http_server, raw_server


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


def test_a_server_s_own_certificate_may_be_the_one_that_grpc_trusts(site):
    pair = site.issue("localhost")
    with grpc_server(pair) as port:
        itself = Endpoint.parse(f"grpcs://localhost:{port}", ca=pair.cert)
        assert why_unreachable(itself, timeout=5) is None


HERE = {"names": ["localhost"]}
ENCRYPTED = ((grpc_server, "grpcs"), (http_server, "https"))
OTHERS = "the certificate of {at} was not issued by an authority "
SITES = " (its issuer: site, tests)"
NEEDS_TLS = "--url {scheme}s://{at}, with --ca FILE for a site's own authority"
STRANGER = "use --cert and --key of a client that the server's authority (its --tls-ca) signed"
NO_CERTIFICATE = (
    "{url} closes the connection after the TLS handshake: it requires a client certificate"
)


@pytest.mark.parametrize(("server", "issued", "asked", "cause", "remedy"), [
    (grpc_server, None, "grpc://localhost", None, None),
    (grpc_server, HERE, "grpcs://localhost", None, None),
    (grpc_server, HERE | {"mutual": True, "shown": "site"}, "grpcs://localhost", None, None),
    (http_server, None, "http://localhost", None, None),
    (http_server, HERE, "https://localhost", None, None),
    *((server, HERE | {"trusted": name}, f"{scheme}://localhost", f"{OTHERS}{where}{SITES}",
       "--ca FILE with that authority's certificate")
      for name, where in (("stranger", "in {ca}"), (None, "that this host trusts"))
      for server, scheme in ENCRYPTED),
    (grpc_server, HERE | {"valid": LONG_AGO}, "grpcs://localhost",
     "the certificate of {at} expired on 2021-01-01 00:00 UTC",
     "have the server's administrator renew it, or set this host's clock"),
    (grpc_server, HERE | {"valid": FAR_AHEAD}, "grpcs://localhost",
     "the certificate of {at} is valid only from 2090-01-01 00:00 UTC",
     "check this host's clock (date)"),
    *((grpc_server, {"names": ["triton.example.org", "www.example.org"]}, f"grpcs://{host}",
       "the certificate of {at} is not for " f"{host}, but for triton.example.org, www.example.org",
       "--url grpcs://triton.example.org:{port}") for host in ("localhost", "127.0.0.1")),
    # The name to ask by is one that can be asked.
    (grpc_server, {"names": ["*.example.org", "::1"]}, "grpcs://localhost",
     "the certificate of {at} is not for localhost, but for *.example.org, ::1",
     "--url grpcs://[::1]:{port}"),
    (grpc_server, {"names": ["*.example.org"]}, "grpcs://localhost",
     "the certificate of {at} is not for localhost, but for *.example.org",
     "use a name that the certificate covers"),
    (grpc_server, None, "grpcs://localhost", "{url} speaks gRPC without TLS", "--url grpc://{at}"),
    (http_server, None, "https://localhost", "{url} speaks HTTP without TLS", "--url http://{at}"),
    *((server, HERE | mutual, f"{scheme}://localhost", "{url} needs TLS", NEEDS_TLS)
      for mutual in ({}, {"mutual": True})
      for server, scheme in ((grpc_server, "grpc"), (http_server, "http"), (http_server, "grpc"))),
    (http_server, HERE, "grpcs://localhost",
     "{url} speaks TLS but not HTTP/2, which gRPC needs: an HTTP/1 proxy?",
     "enable HTTP/2 in the proxy (nginx: listen ... ssl http2, and grpc_pass)"),
    (http_server, None, "grpc://localhost", "{url} speaks HTTP/1, not gRPC",
     "gRPC has its own port (Triton's is 8001), and needs a proxy that forwards HTTP/2"),
    (grpc_server, HERE, "https://localhost", "{url} answers, but not over HTTP",
     "gRPC has its own port: --url grpcs://{at}"),
    (grpc_server, None, "http://localhost", "{url} answers, but not over HTTP",
     "gRPC has its own port: use grpc://"),
    *((server, HERE | {"mutual": True}, f"{scheme}://localhost",
       NO_CERTIFICATE, "--cert FILE --key FILE")
      for server, scheme in ENCRYPTED),
    *((server, HERE | {"mutual": True, "shown": "stranger"}, f"{scheme}://localhost",
       "{url} does not accept the client certificate {mine}", STRANGER)
      for server, scheme in ENCRYPTED),
])  # fmt: skip
def test_what_is_in_the_way_if_anything_is_is_told_with_its_remedy(
    site, stranger, server, issued, asked, cause, remedy
):
    authorities, issued = {"site": site, "stranger": stranger}, dict(issued or {})
    trusted = authorities.get(issued.pop("trusted", "site"))
    signer = authorities.get(issued.pop("shown", None))
    mine = None if signer is None else signer.issue("me")
    mutual = site if issued.pop("mutual", False) else None
    pair = site.issue(*issued.pop("names"), **issued) if issued else None
    with server(pair, mutual) as port:
        url, scheme = f"{asked}:{port}", asked.partition(":")[0]
        known = {"url": url, "at": url.partition("//")[2], "port": port, "scheme": scheme}
        known |= {"ca": trusted and trusted.file, "mine": mine and mine.cert}
        expected = None if cause is None else (cause.format(**known), remedy.format(**known))
        assert told(url, trusted if scheme.endswith("s") else None, mine) == expected


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
    assert found[0].startswith(
        "no server answers at grpcs://nobody.invalid:443: the host nobody.invalid is unknown ("
    )
    assert found[1] == "check the name in --url"


SSH = b"SSH-2.0-OpenSSH_9.2\r\n"


@pytest.mark.parametrize(("scheme", "says", "cause", "remedy"), [
    ("grpc", b"", "{} speaks neither gRPC nor TLS", "check address and port"),
    ("grpc", SSH, "{} speaks neither gRPC nor TLS", "check address and port"),
    ("http", b"", "{} speaks neither HTTP nor TLS", "check address and port"),
    ("http", SSH, "{} speaks neither HTTP nor TLS", "check address and port"),
    ("grpcs", SSH, "{}: the TLS handshake failed: wrong version number",
     "check that this is the port with TLS"),
])  # fmt: skip
def test_a_port_that_speaks_something_else_is_told(scheme, says, cause, remedy):
    with raw_server(says) as port:
        url = f"{scheme}://localhost:{port}"
        assert told(url) == (cause.format(url), remedy)


def assert_reached(endpoint: Endpoint, ca: Authority | None = None) -> None:
    """Nothing is in the way, and gRPC gets to the server too, which is no Triton."""
    assert told(endpoint.url, ca) is None
    with (
        closing(TritonTransport(endpoint, timeout=5)) as transport,
        pytest.raises(ClientError, match="does not answer like a Triton server"),
    ):
        transport.server_ready()


def test_a_server_of_this_host_is_asked_without_its_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with grpc_server() as port:
        assert_reached(Endpoint.parse(f"grpc://localhost:{port}"))


@pytest.fixture
def elsewhere(site):
    """A server at an address that reaches this host, and is no loopback address."""
    with grpc_server(site.issue("0.0.0.0")) as port:
        yield Endpoint.parse(f"grpcs://0.0.0.0:{port}", ca=site.file)


@pytest.mark.parametrize(
    "exempt",
    [
        {},
        # Neither of these keeps gRPC from the proxy.
        {"NO_PROXY": "0.0.0.0"},
        {"no_proxy": "*"},
        {"no_proxy": "0.0.0.0", "no_grpc_proxy": "elsewhere.example.org"},
    ],
)
def test_a_proxy_of_this_host_that_grpc_takes_is_told_without_its_password(
    site, elsewhere, monkeypatch, exempt
):
    for name, value in {"https_proxy": "http://me:secret@127.0.0.1:1", **exempt}.items():
        monkeypatch.setenv(name, value)
    with (
        closing(TritonTransport(elsewhere, timeout=5)) as transport,
        pytest.raises(ServerAwayError),
    ):
        transport.server_ready()
    found = told(elsewhere.url, site)
    assert found == (
        f"{elsewhere.url} can be reached, but gRPC goes through the proxy 127.0.0.1:1 "
        "(https_proxy)",
        'export no_grpc_proxy="${no_grpc_proxy-$no_proxy},0.0.0.0"',
    )
    shell = ["bash", "-c", f'{found[1]}; printf %s "$no_grpc_proxy"']
    remedied = subprocess.run(shell, capture_output=True, text=True, check=True)
    monkeypatch.setenv("no_grpc_proxy", remedied.stdout)
    assert_reached(elsewhere, site)


@pytest.mark.parametrize(
    "variables",
    [
        {"no_proxy": "example.org, 0.0.0.0"},
        {"no_proxy": "0.0.0.0/8"},
        {"no_grpc_proxy": "0.0.0.0", "no_proxy": ""},
        {"grpc_proxy": ""},  # gRPC looks no further
    ],
)
def test_a_proxy_that_grpc_does_not_take_is_not_in_the_way(site, elsewhere, monkeypatch, variables):
    for name, value in {"https_proxy": "http://127.0.0.1:1", **variables}.items():
        monkeypatch.setenv(name, value)
    assert_reached(elsewhere, site)


@pytest.mark.parametrize("content", [None, b"none"])
def test_authorities_that_cannot_be_read_are_not_blamed_on_the_server(
    tmp_path, monkeypatch, content
):
    roots = tmp_path / "roots.pem"
    if content is not None:
        roots.write_bytes(content)
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(roots))
    found = told("grpcs://localhost:1")
    assert found[0].startswith(f"the authorities to trust cannot be read: {roots}: ")
    assert found[1] == "--ca FILE, or a file in GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"


@pytest.mark.parametrize("answers", [Metrics, Website])
def test_http_that_is_not_triton_s_is_told_once_and_not_for_each_model(answers):
    known = {name: ExpectedModel(Signature({}, {}), None) for name in ("nugraph2", "nugraph3")}
    with http_server(answers=answers) as port:
        endpoint = Endpoint.parse(f"http://127.0.0.1:{port}")
        check = check_service(endpoint, known, timeout=5, repeat=1)
        with (
            closing(TritonTransport(endpoint, timeout=5)) as transport,
            pytest.raises(ClientError) as caught,
        ):
            transport.describe("nugraph3")
    not_triton = (
        f"{endpoint.url} answers, but is not Triton's HTTP port",
        "check the port in --url: Triton's are 8000 (HTTP), 8001 (gRPC), 8002 (metrics)",
    )
    assert (check.error, check.remedy, check.models) == (*not_triton, ())
    assert (caught.value.cause, caught.value.remedy) == not_triton


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
