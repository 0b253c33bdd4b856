"""A remote service that speaks only gRPC over TLS: a real Triton, alone and behind real nginx."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from deploy.client.endpoint import Endpoint
from deploy.client.probe import Probe
from deploy.client.transport import TritonTransport
from deploy.deployment.deployment import Deployment, Tls
from deploy.engines.local import LocalEngine, ProcessServer
from deploy.engines.resolved import Resolved
from deploy.host.errors import LaunchError, ServerAwayError
from deploy.host.paths import CHECKOUT, MODEL_REPOSITORY
from deploy.triton.config import write_config
from deploy.triton.golden import read_golden
from deploy.triton.stage import VERSION, stage
from tests.certificates import LONG_AGO, Authority, Pair
from tests.kit import START_S, Kit, lacking, until

# A second loopback address stands for the one by which other hosts reach a server.
OUTSIDE = "127.0.0.2"
SMALL = ("--models", "nugraph3", "--instances", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def site(folder: Path) -> Authority:
    return Authority(folder, "site")


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Authority:
    return Authority(folder, "stranger")


@pytest.fixture(scope="module")
def pair(site: Authority) -> Pair:
    return site.issue("localhost", OUTSIDE, "127.0.0.1")


@pytest.fixture(scope="module")
def encrypted(kit: Kit, pair: Pair) -> dict[str, Any]:
    """A deployment whose gRPC is encrypted and reached from outside."""
    files = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    return kit.up("encrypted", *SMALL, "--listen", OUTSIDE, *files)


@pytest.fixture(scope="module")
def mutual(kit: Kit, pair: Pair, site: Authority) -> dict[str, Any]:
    """The same, open to clients alone that the site's authority has signed."""
    files = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-ca", str(site.file))
    return kit.up("mutual", *SMALL, *files)


def url(answer: dict[str, Any], host: str = OUTSIDE, scheme: str = "grpcs") -> str:
    return f"{scheme}://{host}:{answer['ports']['grpc']}"


def smoke(kit: Kit, url: str, *flags: str | Path, models: str = "nugraph3") -> dict[str, Any]:
    return kit.json("smoke", "--url", url, "--models", models, *map(str, flags))


def told(answer: dict[str, Any]) -> tuple[str, str]:
    """Return cause and remedy of a check that failed."""
    assert answer["status"] == 1
    assert not answer["ok"]
    assert answer["stderr"] == ""
    return answer["error"], answer["remedy"]


def test_a_service_that_speaks_only_grpc_over_tls_is_proved(
    kit: Kit, encrypted: dict[str, Any], site: Authority
) -> None:
    answer = smoke(kit, url(encrypted), "--ca", site.file, "--repeat", "3")
    assert answer["ok"], answer
    assert answer["servers"] == [
        {
            "url": url(encrypted),
            "ready": True,
            "health": "serving",
            "error": None,
            "remedy": None,
            "ok": True,
        }
    ]
    latency = answer["results"][0]["latency"]
    assert latency["requests"] == 3
    assert 0 < latency["median_s"] <= latency["worst_s"]


def test_a_person_reads_a_table(kit: Kit, encrypted: dict[str, Any], site: Authority) -> None:
    done = kit.run("smoke", "--url", url(encrypted), "--model", "nugraph3", "--ca", str(site.file))
    assert (done.returncode, done.stderr) == (0, "")
    title, columns, row, health = done.stdout.splitlines()
    assert title == "smoke inference"
    assert columns.split() == ["server", "model", "result", "median", "worst", "requests"]
    assert row.split()[:3] == [url(encrypted), "nugraph3", "ok"]
    assert health == f"{url(encrypted)}: gRPC health: serving"


def test_a_deployment_with_tls_is_checked_by_its_own_certificate(
    kit: Kit, encrypted: dict[str, Any]
) -> None:
    answer = kit.json("smoke", "--name", "encrypted")
    assert answer["ok"], answer
    assert [server["url"] for server in answer["servers"]] == [
        f"http://127.0.0.1:{encrypted['ports']['http']}",
        url(encrypted),
    ]
    assert kit.json("status", "--name", "encrypted")["ok"]


def test_only_grpc_listens_where_other_hosts_reach_it(encrypted: dict[str, Any]) -> None:
    server = psutil.Process(encrypted["server"]["pid"])
    # gRPC listens on an IPv6 socket, where an IPv4 address has a prefix.
    listening = {
        (c.laddr.ip.removeprefix("::ffff:"), c.laddr.port)
        for c in server.net_connections()
        if c.status == psutil.CONN_LISTEN
    }
    ports = encrypted["ports"]
    assert listening == {
        ("127.0.0.1", ports["http"]),
        (OUTSIDE, ports["grpc"]),
        ("127.0.0.1", ports["metrics"]),
    }


def test_up_says_what_has_no_tls(kit: Kit, encrypted: dict[str, Any], pair: Pair) -> None:
    files = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    done = kit.run("up", "--name", "encrypted", *SMALL, "--listen", OUTSIDE, *files)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    addresses = lines.index(f"http://127.0.0.1:{encrypted['ports']['http']}  {url(encrypted)}")
    assert lines[addresses + 1] == (
        "gRPC is encrypted. Triton cannot encrypt HTTP and metrics: they listen on 127.0.0.1 only"
    )


def test_the_private_key_is_named_but_never_written_down(
    kit: Kit, encrypted: dict[str, Any], pair: Pair
) -> None:
    assert encrypted["tls"] == {"cert": str(pair.cert), "key": str(pair.key), "ca": None}
    secret = pair.key.read_text().splitlines()[1]
    written = [path for path in kit.state.rglob("*") if path.is_file()]
    assert kit.folder("encrypted") / "state.json" in written
    assert not [path for path in written if secret.encode() in path.read_bytes()]


def test_a_client_sends_its_events_over_tls(
    kit: Kit, encrypted: dict[str, Any], site: Authority
) -> None:
    events = CHECKOUT / "scripts" / "data" / "demo_events.h5"
    flags = ("--url", url(encrypted), "--ca", str(site.file), "--json")
    done = kit.run("infer", str(events), *flags, script="scripts")
    assert done.returncode == 0, done.stderr
    done = kit.run("infer", str(events), "--url", url(encrypted), script="scripts")
    assert done.returncode == 1
    assert "was not issued by an authority that this host trusts" in done.stderr


def test_a_wrong_authority_is_told(
    kit: Kit, encrypted: dict[str, Any], stranger: Authority
) -> None:
    assert told(smoke(kit, url(encrypted), "--ca", stranger.file)) == (
        f"the certificate of {OUTSIDE}:{encrypted['ports']['grpc']} was not issued by an "
        f"authority in {stranger.file} (its issuer: site, tests)",
        "--ca FILE with that authority's certificate",
    )


def test_a_port_with_tls_that_is_asked_without_is_told(kit: Kit, encrypted: dict[str, Any]) -> None:
    asked = url(encrypted, scheme="grpc")
    assert told(smoke(kit, asked)) == (
        f"{asked} needs TLS",
        f"--url {url(encrypted)}, with --ca FILE for a site's own authority",
    )


def test_a_plaintext_port_that_is_asked_with_tls_is_told(
    kit: Kit, encrypted: dict[str, Any]
) -> None:
    address = f"127.0.0.1:{encrypted['ports']['http']}"
    assert told(smoke(kit, f"grpcs://{address}")) == (
        f"grpcs://{address} speaks HTTP without TLS",
        f"--url http://{address}",
    )
    assert told(smoke(kit, f"grpc://{address}")) == (
        f"grpc://{address} answers in HTTP/1, not in gRPC",
        "gRPC has its own port (Triton's is 8001), and needs a proxy that forwards HTTP/2",
    )


def test_a_client_certificate_opens_a_server_with_mutual_tls(
    kit: Kit, mutual: dict[str, Any], site: Authority
) -> None:
    mine = site.issue("me")
    flags = ("--ca", site.file, "--cert", mine.cert, "--key", mine.key)
    assert smoke(kit, url(mutual, "localhost"), *flags)["ok"]
    own = kit.json("smoke", "--name", "mutual", "--cert", str(mine.cert), "--key", str(mine.key))
    assert own["ok"], own


def test_without_a_client_certificate_mutual_tls_is_told(
    kit: Kit, mutual: dict[str, Any], site: Authority
) -> None:
    asked = url(mutual, "localhost")
    assert told(smoke(kit, asked, "--ca", site.file)) == (
        f"{asked} closes the connection after the TLS handshake: it requires a client certificate",
        "--cert FILE --key FILE",
    )
    own = kit.json("smoke", "--name", "mutual")
    assert [server["ok"] for server in own["servers"]] == [True, False]
    assert "it requires a client certificate" in told(own)[0]


def test_a_client_certificate_of_a_stranger_is_told(
    kit: Kit, mutual: dict[str, Any], site: Authority, stranger: Authority
) -> None:
    mine = stranger.issue("me")
    flags = ("--ca", site.file, "--cert", mine.cert, "--key", mine.key)
    asked = url(mutual, "localhost")
    assert told(smoke(kit, asked, *flags)) == (
        f"{asked} does not accept the client certificate {mine.cert}",
        "use --cert and --key of a client that the server's authority (its --tls-ca) signed",
    )


def test_a_pair_that_was_changed_for_one_that_does_not_fit_is_told(
    folder: Path, pair: Pair, site: Authority
) -> None:
    # A server that is started again reads what lies there then; up has checked it before.
    tls = Tls(cert=pair.cert, key=site.issue("another").key)
    deployment = Deployment(name="changed", models=("nugraph3",), instances=1, tls=tls)
    engine = LocalEngine(Resolved(deployment))
    engine.prepare(lambda _: None)
    plan = engine.plan().model_copy(update={"log": folder / "changed.log"})
    served = folder / "changed"
    stage(engine.models(), served)
    arguments = tuple(a.replace(str(plan.repository), str(served)) for a in plan.arguments)
    server = ProcessServer(plan.model_copy(update={"arguments": arguments}), lambda **_: None)
    try:
        with pytest.raises(LaunchError) as caught:
            server.wait_ready(
                Probe(f"http://127.0.0.1:{plan.ports.http}", identity=plan.identity),
                {"nugraph3": read_golden(MODEL_REPOSITORY / "nugraph3" / VERSION / "golden.npz")},
                deadline=time.monotonic() + START_S,
                stopped=lambda: False,
            )
    finally:
        server.stop()
    assert caught.value.cause == "the server cannot use its certificate and private key for TLS"


def test_files_that_cannot_be_used_are_refused_before_anything_is_started(
    kit: Kit, site: Authority, pair: Pair
) -> None:
    old, other = site.issue("localhost", valid=LONG_AGO), site.issue("other").key
    for key, cert, said in (
        (old.key, old.cert, f"certificate {old.cert}: expired on 2021-01-01 00:00 UTC"),
        (other, pair.cert, f"certificate {pair.cert}: does not match the private key {other}"),
    ):
        answer = kit.json("up", "--name", "none", "--tls-cert", str(cert), "--tls-key", str(key))
        assert (answer["status"], answer["error"]) == (2, said)
    assert not kit.folder("none").exists()


@pytest.fixture(scope="module")
def faulty(folder: Path, pair: Pair, kit: Kit, site: Authority) -> Iterator[dict[str, Any]]:
    """A server with a model that breaks the contract, one that cannot start, and no third."""
    names = ("nugraph2", "nugraph2_cpu")
    deployment = Deployment(
        name="faulty", models=names, instances=1, tls=Tls(cert=pair.cert, key=pair.key)
    )
    engine = LocalEngine(Resolved(deployment))
    engine.prepare(lambda _: None)
    plan = engine.plan()
    served = folder / "faulty"
    models = engine.models()
    stage(models, served)
    broken = models[0].config
    next(t for t in broken.input if t.name == "hit_table_rms").dims[:] = [1, -1]
    write_config(broken, served / "nugraph2" / "config.pbtxt")
    (served / "nugraph2_cpu" / VERSION / "model.py").write_text("raise ValueError('no weights')\n")
    # As servers elsewhere are: anybody may ask which models there are. It does not poll, which
    # would have it load the broken one again and again.
    arguments = tuple(
        a.replace(str(plan.repository), str(served))
        for a in plan.arguments
        if not re.search("-restricted-|--model-control-mode|--repository-poll", a)
    )
    plan = plan.model_copy(update={"arguments": arguments, "log": folder / "log"})
    answer = {"ports": plan.ports.model_dump()}
    server = ProcessServer(plan, lambda **_: None)
    try:
        endpoint = Endpoint.parse(url(answer, "localhost"), ca=site.file)

        def loaded() -> bool:
            assert server.alive(), server.output()
            transport = TritonTransport(endpoint, timeout=5)
            try:
                index = transport.index() or {}
            except ServerAwayError:
                return False
            finally:
                transport.close()
            return set(index) == set(names) and not any(s == "LOADING" for s, _ in index.values())

        until(loaded, START_S, "the faulty server")
        yield answer
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("model", "cause", "remedy"),
    [
        (
            "nugraph2",
            "model nugraph2 breaks the wire contract: "
            "input hit_table_rms has dims [1, -1], expected [-1]",
            "correct its config.pbtxt: existing clients cannot use it",
        ),
        (
            "nugraph3",
            "{url} serves no model nugraph3",
            "choose from those it serves with --models: nugraph2, nugraph2_cpu",
        ),
    ],
)
def test_what_is_wrong_with_a_model_is_told(
    kit: Kit, faulty: dict[str, Any], site: Authority, model: str, cause: str, remedy: str
) -> None:
    asked = url(faulty, "localhost")
    answer = smoke(kit, asked, "--ca", site.file, models=model)
    [result] = answer["results"]
    assert (result["error"], result["remedy"]) == (cause.format(url=asked), remedy)
    assert answer["status"] == 1


def test_a_model_that_is_not_ready_is_told_with_its_reason(
    kit: Kit, faulty: dict[str, Any], site: Authority
) -> None:
    answer = smoke(kit, url(faulty, "localhost"), "--ca", site.file, models="nugraph2_cpu")
    [result] = answer["results"]
    assert not result["ready"]
    assert (result["error"], result["remedy"]) == (
        "model nugraph2_cpu is not ready: ValueError: no weights",
        "see the log for the whole message",
    )
    # Triton says the same of the server as a whole, whichever model it is asked for.
    [server] = smoke(kit, url(faulty, "localhost"), "--ca", site.file, models="nugraph2")["servers"]
    assert (server["health"], server["error"]) == (
        "not serving",
        f"{server['url']}: the server says it is not ready",
    )
    assert server["remedy"] == "read the server's log about these models: nugraph2_cpu"


def test_wrong_values_are_told(
    kit: Kit, encrypted: dict[str, Any], site: Authority, tmp_path: Path
) -> None:
    shutil.copytree(MODEL_REPOSITORY / "nugraph3", tmp_path / "nugraph3")
    golden = tmp_path / "nugraph3" / VERSION / "golden.npz"
    with np.load(golden) as arrays:
        changed = {name: arrays[name] for name in arrays.files}
    changed["output/e_evt"] = changed["output/e_evt"][:, ::-1]
    np.savez(golden, **changed)
    answer = smoke(kit, url(encrypted), "--ca", site.file, "--repository", tmp_path)
    cause, remedy = told(answer)
    assert cause.startswith("model nugraph3 answers wrongly: output e_evt is off by ")
    assert remedy == (
        "if its weights are not the kit's: --repository DIR with their golden.npz; "
        "otherwise check its weights and environment"
    )


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


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def proxy(folder: Path, encrypted: dict[str, Any], site: Authority, pair: Pair) -> Iterator[Proxy]:
    """nginx before the encrypted deployment, as a site has it, and with each fault it may have."""
    program = _nginx()
    to_grpc = f"location / {{ grpc_pass grpcs://{OUTSIDE}:{encrypted['ports']['grpc']}; }}"
    to_http = f"location / {{ proxy_pass http://127.0.0.1:{encrypted['ports']['http']}; }}"
    clients = f"ssl_client_certificate {site.file}; ssl_verify_client on;"
    old, other = site.issue("localhost", valid=LONG_AGO), site.issue("triton.example.org")
    ways = {
        "good": ("ssl http2", pair, to_grpc),
        "http1": ("ssl", pair, to_http),
        "expired": ("ssl http2", old, to_grpc),
        "other name": ("ssl http2", other, to_grpc),
        "mutual": ("ssl http2", pair, clients + to_grpc),
        "dead": ("ssl http2", pair, "location / { grpc_pass grpc://127.0.0.1:1; }"),
        "closed": ("ssl http2", pair, "location / { return 403; }"),
        "web": ("ssl http2", pair, 'location / { return 200 "fine"; }'),
    }
    ports = {way: _free_port() for way in ways}
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
        until(lambda: _listens(ports["web"], process, log), START_S, "nginx")
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


def test_a_service_behind_a_proxy_is_proved(kit: Kit, proxy: Proxy, site: Authority) -> None:
    answer = smoke(kit, proxy.url("good"), "--ca", site.file)
    assert answer["ok"], answer
    assert answer["servers"][0]["health"] == "serving"


@pytest.mark.parametrize(
    ("way", "cause", "remedy"),
    [
        (
            "http1",
            "{url} speaks TLS but not HTTP/2, which gRPC needs: an HTTP/1 proxy?",
            "enable HTTP/2 in the proxy (nginx: listen ... ssl http2, and grpc_pass)",
        ),
        (
            "expired",
            "the certificate of {address} expired on 2021-01-01 00:00 UTC",
            "have the server's administrator renew it, or set this host's clock",
        ),
        (
            "other name",
            "the certificate of {address} is not for localhost, but for triton.example.org",
            "--url grpcs://triton.example.org:{port}",
        ),
        (
            "mutual",
            "{url}: a proxy answers with HTTP status 400 and does not forward gRPC",
            "if it requires a client certificate: --cert FILE --key FILE",
        ),
        (
            "dead",
            "{url}: a proxy answers with HTTP status 502 and does not forward gRPC",
            "check the server behind the proxy",
        ),
        (
            "closed",
            "{url}: a proxy answers with HTTP status 403 and does not forward gRPC",
            "ask its administrator where, and for whom, it forwards gRPC",
        ),
        (
            "web",
            "{url} does not answer like a Triton server",
            "check the address in --url (gRPC has its own port)",
        ),
    ],
)
def test_what_is_wrong_with_a_proxy_is_told(
    kit: Kit, proxy: Proxy, site: Authority, way: str, cause: str, remedy: str
) -> None:
    words = {
        "url": proxy.url(way),
        "address": proxy.url(way).removeprefix("grpcs://"),
        "port": proxy.ports[way],
    }
    answer = smoke(kit, proxy.url(way), "--ca", site.file)
    assert told(answer) == (cause.format(**words), remedy.format(**words))
    assert answer["results"] == []


def test_a_proxy_with_mutual_tls_lets_a_client_in(kit: Kit, proxy: Proxy, site: Authority) -> None:
    mine = site.issue("me")
    flags = ("--ca", site.file, "--cert", mine.cert, "--key", mine.key)
    assert smoke(kit, proxy.url("mutual"), *flags)["ok"]


def test_http_over_tls_needs_no_http2(kit: Kit, proxy: Proxy, site: Authority) -> None:
    asked = proxy.url("http1").replace("grpcs", "https")
    answer = smoke(kit, asked, "--ca", site.file)
    assert answer["ok"], answer
    assert answer["servers"][0]["health"] is None
    assert "was not issued by an authority" in told(smoke(kit, asked))[0]


def test_a_proxy_with_tls_that_is_asked_without_is_told(kit: Kit, proxy: Proxy) -> None:
    asked = proxy.url("good").replace("grpcs", "grpc")
    assert told(smoke(kit, asked))[0] == f"{asked} needs TLS"
