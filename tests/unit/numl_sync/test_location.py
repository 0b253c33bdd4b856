"""Addresses of buckets, as Triton spells them."""

from __future__ import annotations

import pytest
from numl_sync.errors import UsageError
from numl_sync.location import Location, read_location


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://models", Location("models", "", None)),
        ("s3://models/a/b/", Location("models", "a/b", None)),
        ("s3://host:9000/models/a", Location("models", "a", "http://host:9000")),
        ("s3://http://10.0.0.1:9000/models", Location("models", "", "http://10.0.0.1:9000")),
        ("s3://https://host:9000/models/a", Location("models", "a", "https://host:9000")),
        ("s3://https://host.org/models/a", Location("models", "a", "https://host.org")),
        ("s3://https://[::1]:9000/models", Location("models", "", "https://[::1]:9000")),
    ],
)
def test_it_is_read(url: str, location: Location) -> None:
    assert read_location(url, {}) == location


def test_a_variable_names_the_service_of_an_address_without_one() -> None:
    for named in ("https://host:1", "host:1"):
        found = read_location("s3://models/a", {"AWS_ENDPOINT": named})
        assert found.endpoint == ("https://host:1" if "//" in named else "http://host:1")
    found = read_location("s3://http://other:2/models", {"AWS_ENDPOINT": "https://host:1"})
    assert found.endpoint == "http://other:2"


@pytest.mark.parametrize(
    "url", ["", "models", "https://host/models", "s3://", "s3://user:word@host:1/models",
            "s3://Models", "s3://models/a b", "s3://models//a", "s3://models?x"],
)  # fmt: skip
def test_what_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"not s3://\[http\[s\]://HOST:PORT/\]BUCKET\[/PREFIX\]"):
        read_location(url, {})


@pytest.mark.parametrize("url", ["s3://http://key:word@host:1/models", "s3://key:word@models"])
def test_a_password_in_an_address_is_not_shown(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_location(url, {})
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("named", ["http://key:word@host:1", "http://[x", "https://host/models"])
def test_a_variable_that_names_no_service_is_refused_and_not_shown(named: str) -> None:
    with pytest.raises(UsageError, match=r"^AWS_ENDPOINT is not \[http\[s\]://\]HOST:PORT$"):
        read_location("s3://models/a", {"AWS_ENDPOINT": named})


def test_its_keys_and_its_name() -> None:
    location = Location("models", "a", "http://host:1")
    assert location.key("published.json") == "a/published.json"
    assert str(location) == "s3://http://host:1/models/a"
    assert Location("models", "", None).key("x") == "x"
    assert str(Location("models", "", None)) == "s3://models"
