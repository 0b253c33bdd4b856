"""Keys that may only read objects: to them S3 says of what is missing that access is denied."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from numl_sync.bucket import Bucket
from played import KEY, POLL_S, PlayedBucket, Stage, expected

from numl_formats.location import Location
from numl_formats.trust import signature_path

URL = "s3://models/prod"


class ReadOnly(Bucket):
    """What ``owner`` has, for keys without s3:ListBucket.

    Attributes:
        answers: How many more requests are answered before the keys may read nothing; None: all.
    """

    def __init__(self, owner: PlayedBucket) -> None:
        super().__init__(Location(None, "models", "prod"))
        self.owner = owner
        self.answers: int | None = None

    def _get(self, path: str, conditions: dict[str, str]) -> Any:
        if self.answers is not None:
            self.answers -= 1
        there = {"published.json": self.owner.content, **self.owner.objects}
        content = there.get(path) if self.answers is None or self.answers >= 0 else None
        if content is None:
            denied = {"Code": "AccessDenied", "Message": "Access Denied"}
            status = {"HTTPStatusCode": 403}
            raise ClientError({"Error": denied, "ResponseMetadata": status}, "GetObject")

        def chunks(_size: int) -> Iterator[bytes]:
            yield content

        return {
            "ResponseMetadata": {"HTTPStatusCode": 200},
            "ContentLength": len(content),
            "Body": SimpleNamespace(iter_chunks=chunks),
        }


@pytest.fixture
def owner():
    return PlayedBucket()


@pytest.fixture
def bucket(owner):
    return ReadOnly(owner)


def test_a_signature_that_is_not_there_refuses_the_statement(owner, bucket, tmp_path):
    owner.key = KEY
    stage = Stage(tmp_path / "mirror", bucket, key=KEY)
    owner.publish(1, 1)
    stage.run(2 * POLL_S)
    owner.publish(2, 2)
    path = signature_path(owner.content)
    del owner.objects[path]
    stage.said.clear()
    stage.run(5 * POLL_S)
    assert stage.said == [
        f"refused: {path} is not there, or may not be read; release 1 stays in service"
    ]
    assert stage.agent.status.refused_statements["signature"] == pytest.approx(5, abs=1)
    assert stage.agent.status.failures["bucket"] == 0
    assert stage.tree() == expected(1)


def test_a_fresh_server_gets_the_older_release_if_a_file_is_not_there(owner, bucket, tmp_path):
    stage = Stage(tmp_path / "mirror", bucket)
    owner.publish_each(1, 2)
    del owner.objects["a/2/model.json"]
    stage.run(10)
    assert stage.tree() == expected(1)
    assert stage.said[:2] == [
        "release 2 is published",
        "refused: release 2: a/2/model.json is not in the bucket, or may not be read; "
        "falling back to release 1",
    ]
    status = stage.agent.status
    assert (status.release, status.published_release, status.refused) == (1, 2, True)
    assert status.failures == {"bucket": 0, "release": 1, "folder": 0}


@pytest.mark.parametrize("key", ["", KEY], ids=["while a file is read", "while a signature is"])
def test_keys_that_may_read_nothing_any_more_are_no_fault_of_a_release(
    owner, bucket, tmp_path, key
):
    owner.key = key or None
    stage = Stage(tmp_path / "mirror", bucket, key=key)
    owner.publish_each(1, 2)
    bucket.answers = 1
    stage.run(2 * POLL_S)
    denied = f"{URL} cannot be read with these credentials: AccessDenied; no release yet"
    assert set(stage.said) - {"release 2 is published"} == {denied}
    assert not stage.agent.status.refused
    bucket.answers = None  # as with new keys
    stage.run(2 * POLL_S)
    assert stage.tree() == expected(2)
