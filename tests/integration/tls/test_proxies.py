"""What is wrong with a proxy is told: real nginx before an encrypted service, with each fault."""

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit import free_port, lacking, until
from tests.tls import OUTSIDE, smoke, told


@dataclass(frozen=True)
class Proxy:
    """A running nginx, with a port for each way to set it up."""

    ports: dict[str, int]

    def url(self, way: str) -> str:
        return f"grpcs://localhost:{self.ports[way]}"


def _nginx() -> str:
    found = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        lacking("nginx is missing: apt-get install --no-install-recommends nginx")
    return found


@pytest.fixture(scope="module")
def proxy(folder, encrypted, site, pair):
    """nginx before the encrypted deployment, as a site has it, and with each fault it may have."""
    program = _nginx()
    to_grpc = f"location / {{ grpc_pass grpcs://{OUTSIDE}:{encrypted['ports']['grpc']}; }}"
    to_http = f"location / {{ proxy_pass http://127.0.0.1:{encrypted['ports']['http']}; }}"
    clients = f"ssl_client_certificate {site.file}; ssl_verify_client on;"
    ways = {
        "good": ("ssl http2", pair, to_grpc),
        "http1": ("ssl", pair, to_http),
        "mutual": ("ssl http2", pair, clients + to_grpc),
        "dead": ("ssl http2", pair, "location / { grpc_pass grpc://127.0.0.1:1; }"),
        "closed": ("ssl http2", pair, "location / { return 403; }"),
        "web": ("ssl http2", pair, 'location / { return 200 "fine"; }'),
    }
    ports = {way: free_port() for way in ways}
    servers = [
        f"server {{ listen 127.0.0.1:{ports[way]} {how}; ssl_certificate {own.cert}; "
        f"ssl_certificate_key {own.key}; {body} }}"
        for way, (how, own, body) in ways.items()
    ]
    temporary = [
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    ]
    config = folder / "nginx.conf"
    config.write_text(
        "\n".join(
            [
                f"daemon off; master_process off; pid {folder}/nginx.pid; events {{}}",
                "http { access_log off; client_max_body_size 0;",
                *temporary,
                *servers,
                "}",
            ]
        )
    )
    log = folder / "nginx.log"
    process = subprocess.Popen([program, "-e", log, "-p", folder, "-c", config])
    try:
        until(lambda: _listens(ports["web"], process, log), "nginx")
        yield Proxy(ports)
    finally:
        process.terminate()
        process.wait(20)


def _listens(port: int, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_service_behind_a_proxy_is_proved(kit, proxy, site):
    answer = smoke(kit, proxy.url("good"), "--ca", site.file)
    assert answer["ok"], answer
    assert answer["servers"][0]["health"] == "serving"


@pytest.mark.parametrize(("way", "cause", "remedy"), [
    ("http1", "{url} speaks TLS but not HTTP/2, which gRPC needs: an HTTP/1 proxy?",
     "enable HTTP/2 in the proxy (nginx: listen ... ssl http2, and grpc_pass)"),
    ("mutual", "{url}: a proxy answers with HTTP status 400 and does not forward gRPC",
     "if it requires a client certificate: --cert FILE --key FILE"),
    ("dead", "{url}: a proxy answers with HTTP status 502, so it reaches no server",
     "check the servers behind the proxy"),
    ("closed", "{url}: a proxy answers with HTTP status 403 and does not forward gRPC",
     "ask its administrator where, and for whom, it forwards gRPC"),
    ("web", "{url} does not answer like a Triton server",
     "check the address in --url (gRPC has its own port)"),
])  # fmt: skip
def test_what_is_wrong_with_a_proxy_is_told(kit, proxy, site, way, cause, remedy):
    answer = smoke(kit, proxy.url(way), "--ca", site.file)
    assert told(answer) == (cause.format(url=proxy.url(way)), remedy)
    assert answer["results"] == []


def test_a_proxy_with_mutual_tls_lets_a_client_in(kit, proxy, site):
    mine = site.issue("me")
    flags = ("--ca", site.file, "--cert", mine.cert, "--key", mine.key)
    assert smoke(kit, proxy.url("mutual"), *flags)["ok"]


def test_http_over_tls_needs_no_http2(kit, proxy, site):
    asked = proxy.url("http1").replace("grpcs", "https")
    answer = smoke(kit, asked, "--ca", site.file)
    assert answer["ok"], answer
    assert answer["servers"][0]["health"] is None
    assert "was not issued by an authority" in told(smoke(kit, asked))[0]


def test_a_proxy_with_tls_that_is_asked_without_is_told(kit, proxy):
    asked = proxy.url("good").replace("grpcs", "grpc")
    assert told(smoke(kit, asked))[0] == f"{asked} needs TLS"
