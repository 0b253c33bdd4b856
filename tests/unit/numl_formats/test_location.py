"""Addresses of buckets, as they are typed."""

import re

import pytest

from numl_formats.errors import FormatError
from numl_formats.location import Location, read_endpoint, read_location


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("s3://models", Location(None, "models", "")),
        ("s3://models/a/b.c_d-e/", Location(None, "models", "a/b.c_d-e")),
        ("s3://host:9000/models/a", Location("https://host:9000", "models", "a")),
        ("s3://[::1]:9000/models/a", Location("https://[::1]:9000", "models", "a")),
        ("s3://http://10.0.0.1:9000/models", Location("http://10.0.0.1:9000", "models", "")),
        ("s3://https://host.org/models/a", Location("https://host.org", "models", "a")),
        ("s3://https://[::1]:9000/models", Location("https://[::1]:9000", "models", "")),
    ],
)
def test_it_is_read_and_plain_http_is_for_those_who_say_so(text, location):
    assert read_location(text) == location
    assert read_location(str(location)) == location


def test_an_address_without_an_endpoint_is_spelled_as_in_what_was_accepted_before():
    assert str(Location(None, "models", "")) == "s3://models"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "not the address of a bucket") for text in ("", "models", "https://host/models")),
        *(
            (text, "is not the name of a bucket")
            for text in ("s3://", "s3://Models", "s3://models?x", "s3://https://host", "s3:///m")
        ),
        *(
            (f"s3://{host}/models", "its endpoint is not a URL")
            for host in (
                *("https://", "http://host:0", "http://host:99999", "http://:1", "ho st:1"),
                *("https://host?x=1", "https://[x", "http://host\\x"),
            )
        ),
        *(
            (f"s3://models/{prefix}", "Triton cannot read such a prefix")
            for prefix in ("a//b", "/a", "a b", "a/../b", "müon", "a\n")
        ),
    ],
)
def test_what_is_none_is_refused(text, words):
    with pytest.raises(FormatError, match=f"^{re.escape(text)}.*{words}$|: {words}$"):
        read_location(text)


@pytest.mark.parametrize(
    "text", ["s3://http://key:word@host:1/models", "s3://key:word@models", "s3://word@h:1/m"]
)
def test_a_password_is_not_shown(text):
    with pytest.raises(FormatError) as caught:
        read_location(text)
    assert "word@" not in str(caught.value)


def test_an_endpoint_without_a_scheme_is_reached_over_tls():
    assert read_endpoint("host:1") == "https://host:1"
    assert read_endpoint("http://host:1/") == "http://host:1"
    for wrong in ("http://key:word@host:1", "http://[x", "https://host/models", ""):
        with pytest.raises(FormatError) as caught:
            read_endpoint(wrong)
        assert "word" not in str(caught.value)


def test_its_keys_are_below_its_prefix():
    assert Location("http://host:1", "models", "a").key("published.json") == "a/published.json"
    assert Location(None, "models", "").key("x") == "x"
