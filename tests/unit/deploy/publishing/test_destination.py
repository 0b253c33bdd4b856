"""Where something is published, as typed and as data."""

from pathlib import Path

import pytest

from deploy.host.errors import DeploymentError
from deploy.publishing.destination import Bucket, parse_destination


@pytest.mark.parametrize(
    ("text", "bucket"),
    [
        ("s3://models/prod", Bucket(None, "models", "prod")),
        ("s3://models", Bucket(None, "models", "")),
        ("s3://models/a/b.c_d-e/", Bucket(None, "models", "a/b.c_d-e")),
        ("s3://http://h:8333/models/prod", Bucket("http://h:8333", "models", "prod")),
        ("s3://https://s3.site.org/models/p", Bucket("https://s3.site.org", "models", "p")),
        ("s3://s3.site.org:9000/models/p", Bucket("https://s3.site.org:9000", "models", "p")),
        ("s3://https://[::1]:8333/models", Bucket("https://[::1]:8333", "models", "")),
    ],
)  # fmt: skip
def test_a_bucket_is_spelled_as_for_triton(text, bucket):
    assert parse_destination(text) == bucket
    assert parse_destination(str(bucket)) == bucket


@pytest.mark.parametrize("text", ["/cvmfs/site.org/numl", "models", "./a b", "../x"])
def test_what_has_no_scheme_is_a_folder(text):
    found = parse_destination(text)
    assert found == Path(text).absolute()
    assert parse_destination(str(found)) == found


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "'' is not a destination"),
        ("gs://models/prod", "gs://models/prod: cannot publish to gs:"),
        ("s3://", "s3://: '' is not the name of a bucket"),
        ("s3:models", "s3:models: cannot publish to s3:"),
        ("s3://Models/prod", "s3://Models/prod: 'Models' is not the name of a bucket"),
        ("s3://https://host", "s3://https://host: '' is not the name of a bucket"),
        ("s3://https://:8333/models/x", "s3://https://:8333/models/x: its endpoint is not a URL"),
        ("s3://http://host:0/models", "s3://http://host:0/models: its endpoint is not a URL"),
        (
            "s3://http://host:99999/models",
            "s3://http://host:99999/models: its endpoint is not a URL",
        ),
        (
            "s3://http://host:1/models?x=1",
            "s3://http://host:1/models?x=1: 'models?x=1' is not the name of a bucket",
        ),
        ("s3://models/a//b", "s3://models/a//b: Triton cannot read such a prefix"),
        ("s3://models/a b", "s3://models/a b: Triton cannot read such a prefix"),
        ("s3://models/a/../b", "s3://models/a/../b: Triton cannot read such a prefix"),
        ("s3://models/müon", "s3://models/müon: Triton cannot read such a prefix"),
    ],
)
def test_what_is_no_destination_is_said_in_a_line_with_a_remedy(text, cause):
    with pytest.raises(DeploymentError) as raised:
        parse_destination(text)
    assert raised.value.cause == cause
    assert raised.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "s3://https://key:hidden@host/models/x",
        "s3://key:hidden@models/x",
        "s3://https://hidden@h/m",
    ],
)
def test_a_password_in_a_destination_is_refused_and_not_repeated(text):
    with pytest.raises(DeploymentError) as raised:
        parse_destination(text)
    assert "hidden" not in f"{raised.value.cause} {raised.value.remedy}"
