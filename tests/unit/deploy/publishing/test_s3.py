"""What boto3's failures mean.

No service is asked: those that a real one gives on loopback are tried in tests/integration; expired
credentials, a wrong clock or region cannot be had there.
"""

from __future__ import annotations

from typing import Any

import pytest
from botocore.stub import Stubber

from deploy.host.errors import PublishError
from deploy.publishing.destination import Bucket
from deploy.publishing.s3 import Store, TakenError

PLACE = Bucket("http://127.0.0.1:9", "models", "prod")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    return Store(PLACE)


@pytest.mark.parametrize(
    ("code", "cause", "remedy"),
    [
        ("RequestTimeTooSkewed", "this host's clock differs too much", "timedatectl"),
        ("ExpiredToken", "the credentials have expired", "get new ones"),
        ("AuthorizationHeaderMalformed", "the region is wrong", "AWS_DEFAULT_REGION"),
        ("PermanentRedirect", "the bucket is in another region", "AWS_DEFAULT_REGION"),
        ("403", "the service denies it", "an identity that may list"),
        ("Surprise", "the service answers Surprise", "the service's log"),
        ("x\nerror: y", "the service answers an error", "the service's log"),
        ("x" * 10**6, "the service answers an error", "the service's log"),
    ],
)
def test_what_a_service_refuses_is_a_line_with_a_remedy(
    store: Store, code: str, cause: str, remedy: str
) -> None:
    with Stubber(store.client) as stub:
        stub.add_client_error("put_object", code, "the-id the-secret\nand more")
        with pytest.raises(PublishError) as raised:
            store.write("x", b"")
    assert raised.value.cause.startswith(f"cannot write {PLACE}/x: {cause}")
    assert remedy in (raised.value.remedy or "")
    assert "the-" not in f"{raised.value.cause}{raised.value.remedy}"


def test_a_key_with_a_line_end_is_said_and_not_shown(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-id\n")
    with pytest.raises(PublishError, match="the access key has an invalid character") as raised:
        store.objects()
    assert "the-id" not in f"{raised.value.cause}{raised.value.remedy}"


@pytest.mark.parametrize("code", ["PreconditionFailed", "ConditionalRequestConflict"])
def test_what_somebody_else_has_written_is_an_error_of_its_own(store: Store, code: str) -> None:
    with Stubber(store.client) as stub:
        stub.add_client_error("get_object", "NoSuchKey")
        stub.add_client_error("put_object", code)
        with pytest.raises(TakenError):
            store.replace("x", b"", None)


def test_a_service_without_conditional_writes_is_asked_again_without_the_condition(
    store: Store,
) -> None:
    wanted: dict[str, Any] = {"Bucket": "models", "Key": "prod/x", "Body": b"1"}
    with Stubber(store.client) as stub:
        stub.add_client_error("get_object", "NoSuchKey")
        stub.add_client_error(
            "put_object", "NotImplemented", expected_params={**wanted, "IfNoneMatch": "*"}
        )
        stub.add_response("put_object", {}, expected_params=wanted)
        store.replace("x", b"1", None)
        stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("variables", "cause", "remedy"),
    [
        ({}, "no credentials", "AWS_ACCESS_KEY_ID"),
        ({"AWS_PROFILE": "none"}, "~/.aws has no such profile", "AWS_PROFILE"),
        ({"AWS_ACCESS_KEY_ID": "x"}, "no credentials", "AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_without_credentials_it_says_where_they_are_looked_for(
    variables: dict[str, str], cause: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
