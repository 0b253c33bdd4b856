"""Names and quotas at Envoy: nothing without a name, and no more than a quota with one."""

import base64
import http.client
import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from multiprocessing.synchronize import Event
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.asking import Clients, backends, trusting
from tests.backend import INFER
from tests.certificates import Authority, Pair
from tests.chart import Site
from tests.doors import Envoy, envoy
from tests.kit import until
from tests.programs import run_program

EVENT = bytes(1000)
SERVICE_S = 0.05
QUOTA = {"requestsPerSecond": 60, "burst": 60, "inFlight": 20}
ISSUER, AUDIENCE = "https://tokens.example.org", "numl"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """Signs tokens."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    @property
    def keys(self) -> str:
        numbers = self._key.public_key().public_numbers()
        n, e = (
            encoded(x.to_bytes((x.bit_length() + 7) // 8, "big")) for x in (numbers.n, numbers.e)
        )
        return json.dumps({"keys": [{"kty": "RSA", "alg": "RS256", "use": "sig", "n": n, "e": e}]})

    def token(self, subject: str, **claims: Any) -> tuple[tuple[str, str], ...]:
        """Return a token as metadata; ``claims`` replace what a good one says."""
        said = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "exp": int(time.time()) + 600}
        parts = ({"alg": "RS256", "typ": "JWT"}, {k: v for k, v in {**said, **claims}.items() if v})
        text = ".".join(encoded(json.dumps(part).encode()) for part in parts)
        signed = self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return (("authorization", f"Bearer {text}.{encoded(signed)}"),)


@pytest.fixture(scope="module")
def issuer():
    return Issuer()


@pytest.fixture(scope="module")
def by_token(issuer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("token")
    (folder / "jwks.json").write_text(issuer.keys)
    clients = [{"name": "dune", "subject": "dune"}, {"name": "icarus", "subject": "icarus-jobs"}]
    tenants = {"by": "token", "configMap": "keys", "issuer": ISSUER, "audience": AUDIENCE}
    site = Site(
        ("cpu",), {"frontDoor": {"quota": QUOTA, "tenants": {**tenants, "clients": clients}}}
    )
    with backends(2, SERVICE_S) as servers, envoy(folder, servers, site) as door:
        yield door


def asked(door: Envoy, metadata: tuple[tuple[str, str], ...], requests: int = 4) -> Clients:
    clients = Clients(door.port, trusting(door.authority), metadata)
    clients.ask(requests, EVENT)
    return clients


def test_a_signed_token_names_a_client(by_token, issuer):
    assert not asked(by_token, issuer.token("dune")).failed
    assert not asked(by_token, issuer.token("icarus-jobs")).failed


def test_who_has_no_name_gets_nothing(by_token, issuer):
    refused = {
        "UNAUTHENTICATED": (
            (),
            (("authorization", "Bearer x.y.z"),),
            (("x-numl-client", "dune"),),
            Issuer().token("dune"),
            issuer.token("dune", iss="https://elsewhere.example.org"),
            issuer.token("dune", exp=1),
            issuer.token("dune", exp=None),
        ),
        "PERMISSION_DENIED": (
            issuer.token("dune", aud="other"),
            issuer.token("nobody"),
            (*issuer.token("nobody"), ("x-numl-client", "dune")),
        ),
    }
    for code, kinds in refused.items():
        for metadata in kinds:
            clients = asked(by_token, metadata)
            assert (clients.took, dict(clients.failed)) == ([], {code: 4}), metadata


def test_nor_does_it_over_http(by_token, issuer):
    def status(metadata: tuple[tuple[str, str], ...]) -> int:
        with by_token.https() as client:
            client.request("GET", "/v2/models/nugraph3/ready", headers=dict(metadata))
            return client.getresponse().status

    assert status(issuer.token("dune")) == http.client.OK
    assert status((("x-numl-client", "dune"),)) == http.client.UNAUTHORIZED
    assert status(issuer.token("nobody")) == http.client.FORBIDDEN


def test_a_client_above_its_quota_is_refused_at_once_and_counted_by_name(by_token, issuer):
    time.sleep(1)  # the quota is for a second
    token = issuer.token("dune")
    with by_token.channel() as channel:
        call = channel.unary_unary(INFER)
        sent = [call.future(EVENT, timeout=60, metadata=token) for _ in range(400)]
        codes = Counter(each.code() for each in sent)
    refused = codes[grpc.StatusCode.RESOURCE_EXHAUSTED]
    assert refused
    assert codes[grpc.StatusCode.OK]
    metrics = by_token.ask("/stats/prometheus")
    limited = 'envoy_http_local_rate_limit_rate_limited{envoy_local_http_ratelimit_prefix="dune"}'
    assert f"{limited} {refused}" in metrics
    assert 'envoy_cluster_upstream_rq_completed{envoy_cluster_name="grpc-icarus"}' in metrics


def test_a_client_with_too_many_requests_in_flight_is_refused_at_once(by_token, issuer):
    time.sleep(1)
    token = issuer.token("icarus-jobs")
    with by_token.channel() as channel:
        call = channel.unary_unary(INFER)
        sent = [call.future(EVENT, timeout=30, metadata=token) for _ in range(50)]
        codes = {each.code() for each in sent}
    assert codes == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}


def flood(
    port: int, authority: bytes, metadata: tuple[tuple[str, str], ...], begins: Event
) -> None:
    """Send ten times the quota, until it is ended."""
    os.nice(10)  # other clients are hosts of their own
    clients = Clients(port, grpc.ssl_channel_credentials(authority), metadata)
    begins.set()
    clients.ask(100_000, EVENT, per_second=10 * QUOTA["requestsPerSecond"])


def test_a_client_that_sends_ten_times_its_quota_does_not_slow_another(by_token, issuer):
    def p99() -> float:
        clients = Clients(by_token.port, trusting(by_token.authority), issuer.token("icarus-jobs"))
        clients.ask(150, EVENT, per_second=0.75 * QUOTA["requestsPerSecond"])
        assert not clients.failed
        return clients.p99

    spawned = multiprocessing.get_context("spawn")
    begins = spawned.Event()
    words = (by_token.port, by_token.authority.file.read_bytes(), issuer.token("dune"), begins)
    other = spawned.Process(target=flood, args=words)
    other.start()
    assert begins.wait(60)
    found: dict[signal.Signals, list[float]] = {signal.SIGCONT: [], signal.SIGSTOP: []}
    try:
        # In turns, of which the least count: what else the host does slows some of either.
        for _ in range(5):
            for change, each in found.items():
                os.kill(other.pid, change)
                each.append(p99())
    finally:
        other.kill()
        other.join()
    beside, alone = map(min, found.values())
    print(f"p99 alone {alone:.4f} s, beside the other {beside:.4f} s")
    assert beside < 1.5 * alone


def subject(pair: Pair) -> str:
    """Return what docs/front-door.md says how to print."""
    words = ["openssl", "x509", "-in", pair.cert, "-noout", "-subject", "-nameopt", "RFC2253"]
    done = run_program(words, check=True)
    return done.stdout.strip().removeprefix("subject=").strip()


@pytest.fixture
def people(tmp_path):
    return Authority(tmp_path, "people")


@pytest.fixture
def strangers(tmp_path):
    return Authority(tmp_path, "strangers")


@pytest.fixture
def known(people):
    return people.issue("dune.example.org")


@pytest.fixture
def failed(people, known, tmp_path):
    """How requests fail at a door that knows one certificate, by what they show."""
    (tmp_path / "ca.crt").write_bytes(people.file.read_bytes())
    clients = [{"name": "dune", "subject": subject(known)}]
    tenants = {"by": "certificate", "configMap": "people", "clients": clients}
    site = Site(("cpu",), {"frontDoor": {"tenants": tenants}})
    claimed = (("x-numl-client", subject(known)),)
    with backends(1, 0) as servers, envoy(tmp_path, servers, site) as door:

        def failed(pair: Pair | None) -> set[str]:
            clients = Clients(door.port, trusting(door.authority, pair), claimed)
            clients.ask(4, EVENT)
            return set(clients.failed)

        yield failed


def test_a_certificate_names_a_client(failed, people, known, strangers):
    assert failed(known) == set()
    assert failed(people.issue("other.example.org")) == {"PERMISSION_DENIED"}
    stranger = strangers.issue("dune.example.org")
    assert failed(stranger) == failed(None) == {"UNAVAILABLE"}


def test_another_authority_of_clients_is_noticed_without_a_restart(
    failed, known, strangers, tmp_path
):
    stranger = strangers.issue("dune.example.org")
    (tmp_path / "new").write_bytes(strangers.file.read_bytes())
    (tmp_path / "new").rename(tmp_path / "ca.crt")
    until(lambda: failed(stranger) == {"PERMISSION_DENIED"}, "the other authority")
    assert failed(known) == {"UNAVAILABLE"}


def test_without_names_each_address_has_a_quota(tmp_path):
    quota = {"requestsPerSecond": 1, "burst": 5, "inFlight": 100}  # a busy host sends few
    site = Site(("cpu",), {"frontDoor": {"quota": quota}})

    def status(address: str) -> int:
        with door.https(address) as client:
            client.request("GET", "/v2/models/nugraph3/ready")
            return client.getresponse().status

    with backends(1, 0) as servers, envoy(tmp_path, servers, site) as door:
        assert http.client.TOO_MANY_REQUESTS in {status("127.0.0.7") for _ in range(100)}
        assert status("127.0.0.8") == http.client.OK
