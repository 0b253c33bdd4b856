"""Addresses, and what a client brings to an encrypted connection."""

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.client.endpoint import ClientTls, Endpoint, channel_options, trusted_file
from deploy.host.errors import DeploymentError
from tests.certificates import Authority


@pytest.mark.parametrize(
    ("url", "protocol", "tls", "expected"),
    [
        ("localhost", None, False, "http://localhost:8000"),
        ("localhost", "grpc", False, "grpc://localhost:8001"),
        ("localhost:9000", None, False, "http://localhost:9000"),
        ("http://h:1", None, False, "http://h:1"),
        ("http://h:1", "http", False, "http://h:1"),
        ("http://h:1/", None, False, "http://h:1"),
        ("http://h:1/a/b", None, False, "http://h:1/a/b"),
        ("https://h", None, False, "https://h:443"),
        ("grpc://h", None, False, "grpc://h:8001"),
        ("grpcs://h", None, False, "grpcs://h:443"),
        ("h:443", "grpc", True, "grpcs://h:443"),
        ("grpc://h:443", None, True, "grpcs://h:443"),
        ("[::1]:8000", None, False, "http://[::1]:8000"),
        ("grpc://[fe80::1]", None, False, "grpc://[fe80::1]:8001"),
    ],
)
def test_addresses_are_read(url, protocol, tls, expected):
    assert Endpoint.parse(url, protocol=protocol, tls=tls).url == expected


@pytest.mark.parametrize(
    ("url", "protocol", "says"),
    [
        ("ftp://h", None, "the scheme must be one of"),
        ("grpc://h", "http", "contradicts --protocol http"),
        ("http://h", "grpc", "contradicts --protocol grpc"),
        ("h:port", None, "[Pp]ort"),
        ("h:99999", None, "[Pp]ort"),
        ("h:0", None, "no server has port 0"),
        ("", None, "not an address"),
        ("grpc://a..b", None, "not an address"),
        (f"http://{'a' * 64}.example.org", None, "not an address"),
        ("http://", None, "not an address"),
        ("a b", None, "not an address"),
        ("http://me:secret@h", None, "not an address"),
        ("grpc://h:1/path", None, "has no path"),
    ],
)
def test_wrong_addresses_are_named(url, protocol, says):
    with pytest.raises(DeploymentError, match=says):
        Endpoint.parse(url, protocol=protocol)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_known_error(url):
    try:
        endpoint = Endpoint.parse(url)
    except DeploymentError:
        return
    assert Endpoint.parse(endpoint.url) == endpoint


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [("grpcs://h", "h", 443), ("grpc://[::1]:7", "::1", 7), ("http://h:1/a/b", "h", 1)],
)
def test_an_address_has_a_host_and_a_port(url, host, port):
    endpoint = Endpoint.parse(url)
    assert (endpoint.host, endpoint.port) == (host, port)


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("grpc://127.0.0.1:1", True),
        ("grpcs://[::1]:1", True),
        ("grpc://localhost", True),
        ("grpc://localhost.example.org", False),
        ("grpc://10.0.0.1:1", False),
    ],
)
def test_no_proxy_is_asked_for_a_server_of_this_host(url, here):
    options = channel_options(Endpoint.parse(url))
    assert (("grpc.enable_http_proxy", 0) in options) == here


def test_files_mean_tls(tmp_path):
    authority = Authority(tmp_path, "site")
    mine = authority.issue("me")
    assert Endpoint.parse("h", ca=authority.file).url == "https://h:443"
    endpoint = Endpoint.parse("h", protocol="grpc", cert=mine.cert, key=mine.key)
    assert (endpoint.url, endpoint.tls) == ("grpcs://h:443", ClientTls(None, mine.cert, mine.key))


def test_a_file_for_tls_is_found_after_a_change_of_folder(tmp_path, monkeypatch):
    authority = Authority(tmp_path, "site").file
    monkeypatch.chdir(tmp_path)
    endpoint = Endpoint.parse("grpcs://h", ca=authority.relative_to(tmp_path))
    monkeypatch.chdir("/")  # as a notebook may
    assert trusted_file(endpoint) == str(authority)


def test_grpc_trusts_the_hosts_file_of_authorities_where_python_knows_but_a_folder(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", raising=False)
    authority = Authority(tmp_path, "site").file
    folder = ssl.get_default_verify_paths()._replace(cafile=None, capath=str(tmp_path))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: folder)
    monkeypatch.setattr("deploy.client.endpoint._HOST_BUNDLES", ("/no/such.pem", str(authority)))
    assert trusted_file(Endpoint.parse("grpcs://h")) == str(authority)
    assert trusted_file(Endpoint.parse("https://h")) is None  # Python reads the folder


CA, CERT, KEY = {"ca": "site.ca.pem"}, {"cert": "site.me.pem"}, {"key": "site.me.key"}
TOGETHER = "a client certificate and its private key go together", "--cert FILE --key FILE"
WITHOUT = "{url} is without TLS, but --ca, --cert and --key are for it"


@pytest.mark.parametrize(("url", "files", "cause", "remedy"), [
    ("grpc://h", CA, WITHOUT, "grpcs://h, or leave them out"),
    ("grpc://h", CERT | KEY, WITHOUT, "grpcs://h, or leave them out"),
    ("http://h:8000", CA, WITHOUT, "https://h:8000, or leave them out"),
    ("grpcs://h", CERT, *TOGETHER),
    ("grpcs://h", KEY, *TOGETHER),
    ("h", {"ca": "none"}, "authority {folder}/none: no such file", "--ca with a readable file"),
])  # fmt: skip
def test_files_for_tls_that_do_not_fit_are_told_with_what_does(tmp_path, url, files, cause, remedy):
    Authority(tmp_path, "site").issue("me")
    with pytest.raises(DeploymentError) as caught:
        Endpoint.parse(url, **{use: tmp_path / name for use, name in files.items()})
    assert caught.value.cause == cause.format(url=url, folder=tmp_path)
    assert caught.value.remedy == remedy
