"""Who learns the password of ``docker login``: the registry that it is for, and nobody else."""

from __future__ import annotations

import base64
import io
import json
import ssl

import pytest
import requests

from deploy.artefacts.layers import find_image
from deploy.artefacts.reference import parse_reference
from deploy.artefacts.registry import Registry
from deploy.host.errors import PublishError
from tests.certificates import Authority
from tests.releases import layer
from tests.unit.deploy.artefacts.played import Registry as Played

PASSWORD = base64.b64encode(b"alice:secret").decode()


@pytest.fixture
def log_in(tmp_path, monkeypatch):
    """Does what ``docker login`` does."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    def write(host: str, **entry: str) -> None:
        auths = {host: {"auth": PASSWORD, **entry}}
        (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))

    return write


@pytest.fixture
def logged_in(serve, log_in):
    """Starts registries that are logged in to, and challenge who shows them nothing."""

    def start(challenge: str, **entry: str) -> Played:
        registry = serve(layer({}))
        log_in(registry.address, **entry)
        registry.challenge = challenge.format(registry.address)
        return registry

    return start


BEARER = 'Bearer realm="http://{}/token",service="x"'
either = pytest.mark.parametrize("challenge", ["Basic", BEARER])


@either
def test_a_host_that_a_registry_redirects_to_learns_neither_password_nor_token(
    serve, logged_in, tmp_path, challenge
):
    registry, other = logged_in(challenge), serve(layer({}), host="127.0.0.2")
    # The registry itself is logged in to; then it sends its blobs from elsewhere.
    other.challenge = challenge.format(other.address)
    [found] = find_image(f"{registry.name}:t", tmp_path).layers
    assert f"Basic {PASSWORD}" in [shown for _, shown in registry.asked]
    registry.elsewhere = f"http://{other.address}"
    with pytest.raises(PublishError, match="does not let you read"):
        found.whole()
    assert {shown for _, shown in other.asked} == {None}
    assert not any("token" in path for path, _ in other.asked)


@pytest.mark.parametrize(
    "fault",
    [
        {"elsewhere": "http://[::1"},
        {"elsewhere": "http://..."},
        {"challenge": f'Bearer realm="http://{"a" * 300}.example"'},
    ],
)
def test_an_address_that_is_none_and_that_a_registry_sends_one_to_is_told(serve, fault):
    registry = serve(layer({}))
    vars(registry).update(fault)
    with pytest.raises(PublishError, match="cannot be reached, or is not a registry"):
        Registry(parse_reference(f"{registry.name}:t")).manifest("t")


def test_a_registry_with_a_certificate_of_the_sites_own_authority_is_told_how_to_trust(
    serve, tmp_path, monkeypatch
):
    authority, played = Authority(tmp_path, "site"), serve(layer({}))
    issued = authority.issue("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.cert, issued.key)
    played.socket = context.wrap_socket(played.socket, server_side=True)
    registry = Registry(parse_reference(f"{played.name}:t"))
    registry._url = registry._url.replace("http:", "https:")
    cause = f"certificate of registry {played.address} is not trusted: unable to get local issuer"
    with pytest.raises(PublishError, match=cause) as raised:
        registry.manifest("t")
    assert str(raised.value.remedy).startswith("REQUESTS_CA_BUNDLE=FILE")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.file))
    assert registry.manifest("t").digest == played.document.digest
    # Of a trusted authority, but for another name: trust does not mend that.
    registry = Registry(parse_reference(f"localhost:{played.server_port}/lab/numl:t"))
    registry._url = registry._url.replace("http:", "https:")
    with pytest.raises(PublishError, match="is not trusted: Hostname mismatch") as raised:
        registry.manifest("t")
    assert raised.value.remedy == "name it as its certificate does, or renew that"


@either
def test_a_registry_on_this_host_is_asked_without_a_proxy(
    serve, logged_in, tmp_path, monkeypatch, challenge
):
    registry, proxy = logged_in(challenge), serve(host="127.0.0.2")
    monkeypatch.setenv("http_proxy", f"http://{proxy.address}")
    monkeypatch.setenv("no_proxy", "")
    assert find_image(f"{registry.name}:t", tmp_path).digest == registry.document.digest
    assert proxy.asked == []


def test_an_image_for_all_is_read_with_a_token_from_another_host(serve, log_in, tmp_path):
    registry, other = serve(layer({})), serve(host="127.0.0.2")
    log_in("registry.example.org")
    registry.challenge = f'Bearer realm="http://{other.address}/token?a=b",scope="pull"'
    assert find_image(f"{registry.name}:t", tmp_path).digest == registry.document.digest
    assert other.asked == [("/token?a=b&scope=pull", None)]


def test_a_password_that_a_registry_refuses_is_sent_once(logged_in, tmp_path):
    registry = logged_in(BEARER)
    registry.token = b'{"token": "of nobody"}'
    with pytest.raises(PublishError, match="does not let you read"):
        find_image(f"{registry.name}:t", tmp_path)
    assert [shown for path, shown in registry.asked if "token" in path] == [f"Basic {PASSWORD}"]


@either
def test_nobody_learns_a_password_of_netrc(serve, logged_in, tmp_path, monkeypatch, challenge):
    other = serve(layer({}), host="127.0.0.2")
    netrc = tmp_path / "netrc"
    netrc.write_text("default login bob password hidden\n")
    monkeypatch.setenv("NETRC", str(netrc))
    registry = logged_in(challenge)
    [found] = find_image(f"{registry.name}:t", tmp_path).layers
    registry.elsewhere = f"http://{other.address}"
    assert found.whole()
    passwords = {shown for _, shown in registry.asked if (shown or "").startswith("Basic")}
    assert passwords == {f"Basic {PASSWORD}"}
    assert {shown for _, shown in other.asked} == {None}


def test_a_login_that_left_an_identity_token_gets_a_token_with_it(logged_in, tmp_path):
    registry = logged_in(f'{BEARER},scope="repository:r/i:pull"', identitytoken="of alice")
    registry.token = b'{"access_token": "own"}'
    assert find_image(f"{registry.name}:t", tmp_path).digest == registry.document.digest
    assert registry.forms == [
        {
            "grant_type": "refresh_token",
            "client_id": "numlkit",
            "refresh_token": "of alice",
            "service": "x",
            "scope": "repository:r/i:pull",
        }
    ]
    assert "of alice" not in str(registry.asked)


@pytest.mark.parametrize(
    ("realm", "refused"),
    [
        ("http://auth.example.org/token", "wants its password sent unprotected"),
        ("http://{}/token", "which gives no token"),  # but leads elsewhere
    ],
)
def test_an_identity_token_is_sent_only_where_a_password_is(serve, logged_in, realm, refused):
    registry, other = logged_in("", identitytoken="of alice"), serve(host="127.0.0.2")
    registry.elsewhere = f"http://{other.address}"
    with pytest.raises(PublishError, match=refused):
        Registry(parse_reference(registry.name))._log_in(
            f'Bearer realm="{realm.format(registry.address)}"'
        )
    assert other.forms == []


@pytest.mark.parametrize(
    "said",
    [
        b"[]",
        b"null",
        b'"x"',
        b"hello",
        b"{}",
        b'{"token": 5}',
        b'{"token": "\xc3\xa9"}',
        b"[" * 9999,
    ],
)
def test_a_token_that_is_no_object(serve, log_in, tmp_path, said):
    registry = serve(layer({}))
    log_in("registry.example.org")
    realm = f"http://{registry.address}/token"
    registry.challenge, registry.token = f'Bearer realm="{realm}"', said
    cause = rf"registry {registry.address} has its users ask {realm}, which gives no token"
    with pytest.raises(PublishError, match=cause):
        find_image(f"{registry.name}:t", tmp_path)


@pytest.mark.parametrize(
    ("host", "realm", "is_sent"),
    [
        ("registry.example.org", "https://auth.example.org/token", True),
        ("127.0.0.1:5000", "https://auth.example.org/token", True),
        ("127.0.0.1:5000", "http://localhost:5001/token", True),
        ("registry.example.org", "http://registry.example.org/token", False),
        ("registry.example.org", "http://127.0.0.1/token", False),
        ("127.0.0.1:5000", "http://auth.example.org/token", False),
        ("127.0.0.1:5000", "http://127.0.0.1:80@auth.example.org/token", False),
        ("127.0.0.1:5000", "http://auth.example.org\\@127.0.0.1/token", False),
    ],
)
def test_a_password_is_sent_to_a_realm_only_where_nobody_on_the_way_can_read_it(
    log_in, monkeypatch, host, realm, is_sent
):
    log_in(host)
    sent = []

    def get(
        _self: object, url: str, auth: tuple[str, str] | None, **_: object
    ) -> requests.Response:
        sent.append((url, auth))
        answer = requests.Response()
        answer.status_code, answer.raw = 200, io.BytesIO(b'{"token": "t"}')
        return answer

    monkeypatch.setattr(requests.Session, "get", get)
    registry = Registry(parse_reference(f"{host}/r/i:t"))
    if is_sent:
        registry._log_in(f'Bearer realm="{realm}",service="x"')
        assert sent == [(f"{realm}?service=x", ("alice", "secret"))]
        return
    with pytest.raises(PublishError, match="wants its password sent unprotected") as caught:
        registry._log_in(f'Bearer realm="{realm}"')
    assert sent == []
    assert f"docker logout {host}" in str(caught.value.remedy)


@pytest.mark.parametrize(
    "settings",
    [
        {"auths": {"HOST": {"auth": "no base64"}}},
        {"credHelpers": {"HOST": "that-is-not-there"}},
        {"auths": {"HOST": "alice"}},
    ],
)
def test_credentials_that_cannot_be_read_are_told(serve, tmp_path, monkeypatch, settings):
    registry = serve(layer({}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    text = json.dumps(settings).replace("HOST", registry.address)
    (tmp_path / "config.json").write_text(text)
    registry.challenge = "Basic"
    cause = rf"the credentials of docker login for {registry.address} cannot be read"
    with pytest.raises(PublishError, match=cause) as raised:
        find_image(f"{registry.name}:t", tmp_path)
    assert raised.value.remedy == f"docker login {registry.address}"
