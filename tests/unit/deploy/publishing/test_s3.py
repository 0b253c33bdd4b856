"""What boto3's failures mean.

No service is asked: those that a real one gives on loopback are tried in tests/integration; expired
credentials, a wrong clock or region cannot be had there.
"""

from hashlib import sha256
from io import BytesIO
from unittest.mock import Mock

import pytest
from botocore.response import StreamingBody
from botocore.stub import Stubber
from urllib3.exceptions import ProtocolError

from deploy.host.errors import PublishError
from deploy.publishing.destination import Bucket
from deploy.publishing.s3 import Store, TakenError
from tests.unit.deploy.client.servers import Metrics, http_server
from tests.unit.deploy.publishing.store import Service

PLACE = Bucket("http://127.0.0.1:9", "models", "prod")


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    return Store(PLACE)


@pytest.fixture(scope="module")
def client():
    """One for all: boto3 takes long to make it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "the-id")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
        yield Store(PLACE).client


@pytest.fixture
def stub(store, client):
    """What the service answers to ``store``."""
    store.__dict__["client"] = client
    with Stubber(client) as stub:
        yield stub


@pytest.mark.parametrize(
    ("code", "cause", "remedy"),
    [
        ("RequestTimeTooSkewed", "this host's clock differs too much", "timedatectl"),
        ("ExpiredToken", "the credentials have expired", "get new ones"),
        ("AuthorizationHeaderMalformed", "the region is wrong", "AWS_DEFAULT_REGION"),
        ("PermanentRedirect", "the bucket is in another region", "AWS_DEFAULT_REGION"),
        ("503", "the service is overloaded", "again later"),
        ("ServiceUnavailable", "the service is overloaded", "again later"),
        ("403", "the service denies it", "an identity that may list"),
        ("Surprise", "the service answers Surprise", "the service's log"),
        ("x\nerror: y", "the service answers an error", "the service's log"),
        ("x" * 10**6, "the service answers an error", "the service's log"),
    ],
)
def test_what_a_service_refuses_is_a_line_with_a_remedy(store, stub, code, cause, remedy):
    stub.add_client_error("put_object", code, "the-id the-secret\nand more")
    with pytest.raises(PublishError) as raised:
        store.write("x", b"")
    assert raised.value.cause.startswith(f"cannot write {PLACE}/x: {cause}")
    assert remedy in (raised.value.remedy or "")
    assert "the-" not in f"{raised.value.cause}{raised.value.remedy}"


def test_the_placeholder_of_a_folder_is_no_object_of_it(store):
    store.__dict__["client"] = Service(objects={"prod/": b"", "prod/x": b"1"})
    assert list(store.objects()) == ["x"]


def test_a_key_with_a_line_end_is_said_and_not_shown(store, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-id\n")
    with pytest.raises(PublishError, match="the access key has an invalid character") as raised:
        store.objects()
    assert "the-id" not in f"{raised.value.cause}{raised.value.remedy}"


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("AWS_ENDPOINT_URL", "storage", "ValueError: Invalid endpoint: storage"),
        ("AWS_SECRET_ACCESS_KEY", "\udcff", "UnicodeEncodeError: 'utf-8' codec can't"),
    ],
)
def test_a_setting_that_is_none_is_a_line(store, monkeypatch, name, value, cause):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv(name, value)
    with pytest.raises(PublishError, match=cause) as raised:
        Store(Bucket(None, "models", "prod")).read("x")
    assert raised.value.remedy == "check the address, ~/.aws/config and AWS_*"


def test_an_error_that_breaks_off_is_no_answer(store):
    # botocore reads what is no success itself, and passes on what urllib3 raises.
    broken = Mock(side_effect=ProtocolError("Connection broken", ConnectionResetError()))
    store.__dict__["client"] = Mock(get_object=broken)
    with pytest.raises(PublishError, match=f"{PLACE.endpoint} does not answer"):
        store.read("x")


class Elsewhere(Metrics):
    """Redirects everything, as a web server does to https."""

    do_HEAD = Metrics.do_GET  # noqa: N815

    def end_headers(self) -> None:
        self.send_header("Location", "https://elsewhere.example/")
        super().end_headers()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_service_that_redirects_is_said_to(store, monkeypatch, status):
    monkeypatch.setattr(Elsewhere, "status", status)
    with http_server(answers=Elsewhere) as port:
        place = Bucket(f"http://127.0.0.1:{port}", "models", "prod")
        with pytest.raises(PublishError, match="redirects to another address") as raised:
            Store(place).objects()
    assert raised.value.remedy == "correct the address: http or https, host and port"


def test_a_list_that_s3_does_not_give_is_a_line(store):
    pages = Mock(paginate=lambda **_: [{"Contents": [{"Key": "prod/x"}]}])
    store.__dict__["client"] = Mock(get_paginator=lambda _: pages)
    with pytest.raises(PublishError, match=r"an answer that S3 does not give.* KeyError: 'Size'"):
        store.objects()


@pytest.mark.parametrize("read", [Store.read, Store.sha256])
def test_an_object_whose_end_did_not_come_is_not_taken_for_a_shorter_one(store, stub, read):
    stub.add_response("get_object", {"Body": StreamingBody(BytesIO(b"x" * 50), 100)})
    with pytest.raises(PublishError, match="the connection was cut") as raised:
        read(store, "x")
    assert raised.value.remedy == "run the command again"


@pytest.mark.parametrize("code", ["PreconditionFailed", "ConditionalRequestConflict"])
def test_what_somebody_else_has_written_is_an_error_of_its_own(store, stub, code):
    stub.add_client_error("get_object", "NoSuchKey")
    stub.add_client_error("put_object", code)
    with pytest.raises(TakenError):
        store.replace("x", b"", None)


@pytest.mark.parametrize("conditional", [True, False])
def test_an_object_is_there_whole_also_where_conditions_are_refused_after_it_was_sent(
    store, conditional
):
    service, content = Service(conditional=conditional), b"x" * 200_000
    store.__dict__["client"] = service
    store.upload("one/1/weights", content, sha256(content).hexdigest())
    store.replace("published.json", b"1", None)
    store.replace("published.json", b"2", store.read("published.json"))
    assert service.objects == {"prod/one/1/weights": content, "prod/published.json": b"2"}


@pytest.mark.parametrize("spoilt", [b"", b"x" * 99, b"y" * 100])
def test_what_a_service_does_not_give_back_as_it_was_sent_is_an_error(store, spoilt):
    store.__dict__["client"] = Service(spoil=lambda *_: spoilt)
    content = b"x" * 100
    for write in (
        lambda: store.upload("a", content, sha256(content).hexdigest()),
        lambda: store.write("b", content),
    ):
        with pytest.raises(PublishError, match="does not hold what was sent to it") as raised:
            write()
        assert raised.value.remedy


def test_only_what_is_marked_is_the_kits(store):
    service = Service(objects={"prod/theirs": b""})
    store.__dict__["client"] = service
    store.upload("ours", b"", sha256(b"").hexdigest())
    assert [store.is_own(key) for key in ("ours", "theirs", "none")] == [True, False, False]


@pytest.mark.parametrize(
    ("variables", "cause", "remedy"),
    [
        ({}, "no credentials", "AWS_ACCESS_KEY_ID"),
        ({"AWS_PROFILE": "none"}, "~/.aws has no such profile", "AWS_PROFILE"),
        ({"AWS_ACCESS_KEY_ID": "x"}, "no credentials", "AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_without_credentials_it_says_where_they_are_looked_for(
    variables, cause, remedy, monkeypatch
):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/none")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/none")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PublishError) as raised:
        Store(PLACE).read("x")
    assert cause in raised.value.cause
    assert remedy in (raised.value.remedy or "")
