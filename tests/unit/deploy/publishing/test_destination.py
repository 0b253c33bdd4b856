"""Where something is published, as typed and as data; of buckets' addresses, see numl_formats."""

from pathlib import Path

import pytest

from deploy.host.errors import DeploymentError
from deploy.publishing.destination import Bucket, parse_destination


def test_a_bucket_is_spelled_as_for_triton():
    assert parse_destination("s3://http://h:8333/models/prod") == Bucket(
        "http://h:8333", "models", "prod"
    )


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
    ],
)
def test_what_is_no_destination_is_said_in_a_line_with_a_remedy(text, cause):
    with pytest.raises(DeploymentError) as raised:
        parse_destination(text)
    assert raised.value.cause == cause
    assert raised.value.remedy


def test_a_password_in_a_destination_is_refused_and_not_repeated():
    with pytest.raises(DeploymentError) as raised:
        parse_destination("s3://https://key:hidden@host/models/x")
    assert "hidden" not in f"{raised.value.cause} {raised.value.remedy}"
