"""Addresses, model descriptions and error texts; no server is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.client.transport import (
    ClientError,
    Endpoint,
    ProtocolName,
    ServedModel,
    ServerAwayError,
    TritonTransport,
    triton_reason,
)


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
def test_addresses_are_read(
    url: str, protocol: ProtocolName | None, tls: bool, expected: str
) -> None:
    assert Endpoint.parse(url, protocol=protocol, tls=tls).url == expected


@pytest.mark.parametrize(
    ("url", "protocol", "says"),
    [
        ("ftp://h", None, "the scheme is none of"),
        ("grpc://h", "http", "contradicts --protocol http"),
        ("http://h", "grpc", "contradicts --protocol grpc"),
        ("h:port", None, "[Pp]ort"),
        ("h:99999", None, "[Pp]ort"),
        ("", None, "not an address"),
        ("http://", None, "not an address"),
        ("a b", None, "not an address"),
        ("http://me:secret@h", None, "not an address"),
        ("grpc://h:1/path", None, "has no path"),
    ],
)
def test_wrong_addresses_are_named(url: str, protocol: ProtocolName | None, says: str) -> None:
    with pytest.raises(ClientError, match=says):
        Endpoint.parse(url, protocol=protocol)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_known_error(url: str) -> None:
    try:
        endpoint = Endpoint.parse(url)
    except ClientError:
        return
    assert Endpoint.parse(endpoint.url) == endpoint


def test_a_ca_file_means_tls_and_must_exist(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    with pytest.raises(ClientError, match="no such file"):
        Endpoint.parse("h", ca=ca)
    ca.touch()
    assert Endpoint.parse("h", ca=ca).url == "https://h:443"


def test_class_names_come_from_the_configuration_if_they_fit() -> None:
    model = ServedModel("m", {}, (), {"semantic_classes": "a, b,c"})
    assert model.classes("semantic", 3) == ("a", "b", "c")
    assert model.classes("semantic", 2) == ("class_0", "class_1")
    assert model.classes("event", 1) == ("class_0",)
    assert model.classes("event", 0) == ()


def test_a_model_is_shown_with_what_its_weights_are() -> None:
    assert ServedModel("m", {}, (), {}).title == "m"
    assert ServedModel("m", {}, (), {"weights": "demo weights"}).title == "m (demo weights)"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("plain", "plain"),
        (
            "Failed to process the request(s) for model instance 'nugraph3_0_1', message: "
            "ValueError: no\n\nAt:\n  /models/nugraph3/1/model.py(12): execute\n",
            "ValueError: no",
        ),
        (
            "Failed to process the request(s) for model 'nugraph3_0', message: "
            "EventError: hit_table/rms row 3 is nan",
            "hit_table/rms row 3 is nan",
        ),
        ("two\nlines", "two lines"),
    ],
)
def test_a_reason_is_one_line_without_wrapping(message: str, reason: str) -> None:
    assert triton_reason(message) == reason


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_server_that_is_not_there_is_away(scheme: str) -> None:
    # Port 1 is reserved; nothing listens there.
    transport = TritonTransport(Endpoint.parse(f"{scheme}://127.0.0.1:1"), timeout=5)
    try:
        with pytest.raises(ServerAwayError, match=rf"^{scheme}://127\.0\.0\.1:1: .*refused"):
            transport.describe("nugraph3")
    finally:
        transport.close()
