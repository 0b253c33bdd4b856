"""A publish that is killed, or meets another: against a real S3 service.

What is published are small files; of a bucket in memory unit tests try every step. That models are
verified first, and what a Triton makes of it, other tests show.
"""

import hashlib
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import boto3
import pytest

from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.host.console import Console
from deploy.host.errors import PublishError
from deploy.publishing.bucket import BucketPlace
from deploy.publishing.destination import parse_destination
from deploy.publishing.place import Look, Order, Outcome, Signing
from numl_formats.published import Published
from numl_formats.statement import read_published
from tests.bucket import ADMIN, S3, juicefs
from tests.programs import in_child
from tests.unit.deploy.publishing.store import MODELS, after, small_models

# What a publish writes: files, the two models' configurations, the pointer. Steps are before and
# after each: the second file is there, one configuration is, the pointer has been sent.
PUBLISH_STEPS = (3, 17, 21)


@pytest.fixture(scope="module")
def without_conditions(tmp_path_factory):
    with juicefs(tmp_path_factory.mktemp("juicefs")) as service:
        yield service


@pytest.fixture(params=["bucket", "without_conditions"], ids=["SeaweedFS", "JuiceFS"])
def service(request):
    """Services with and without conditional writes."""
    found: S3 = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def session():
    access, secret = ADMIN
    return boto3.session.Session(access, secret, region_name="us-east-1")


@pytest.fixture(autouse=True)
def one_session(session, monkeypatch):
    """Read boto3's own files once, and not for each of hundreds of publishes."""
    monkeypatch.setattr("boto3.session.Session", lambda: session)


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Publish a content; ``hook`` is called with the place before anything is asked."""
    small_models(monkeypatch, tmp_path)

    def run(place: str, content: str, hook: Callable[[Any], None] | None = None) -> Outcome:
        at = at_destination(place)
        if hook is not None:
            hook(at._store.client)
        resolved = Resolved(Deployment(name=content, models=MODELS))
        return at.publish(Order(resolved, with_code=True), Console("quiet"))

    return run


def at_destination(place: str) -> BucketPlace:
    return BucketPlace(parse_destination(place))


def at_step(step: int, act: Callable[[], None]) -> Callable[[Any], None]:
    """Return a hook: ``act`` is called at a step; steps are before and after each PUT."""

    def hook(client: Any) -> None:
        count = after(step, act)
        for event in ("before-send", "needs-retry"):
            client.meta.events.register_first(f"{event}.s3.PutObject", lambda **_: count())

    return hook


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def seen(service: S3, prefix: str) -> Published:
    """Return what a fresh reader sees, all of which is there whole."""
    return whole(service.contents(prefix))


def whole(there: Mapping[str, bytes]) -> Published:
    """Return what is published, all of which is there whole.

    That is: of the pointer the release that serves, and of each configuration its version.
    """
    published = read_published(there["published.json"])
    for release in published.releases:
        for name, model in release.models.items():
            for path, file in (*model.files.items(), *model.code.items()):
                content = there[f"{name}/{model.version}/{path}"]
                assert hashlib.sha256(content).hexdigest() == file.sha256
    named = {m.code["config.pbtxt"].sha256 for r in published.releases for m in r.models.values()}
    for name in MODELS:
        config = there[f"{name}/config.pbtxt"]
        if hashlib.sha256(config).hexdigest() in named:
            continue
        # The release that was being brought when it was killed: it is whole, too.
        version = published.last + 1
        assert f"versions: {version}" in config.decode()
        for path in ("model.py", "weights.safetensors"):
            assert f"{name}/{version}/{path}" in there
    return published


@pytest.mark.parametrize("step", PUBLISH_STEPS)
def test_a_publish_that_is_killed_leaves_the_old_release_and_can_be_repeated(bucket, publish, step):
    prefix = f"killed-{step}"
    place = bucket.destination(prefix)
    assert publish(place, "old").release == "1"
    assert in_child(lambda: publish(place, "new", at_step(step, die))) == -signal.SIGKILL
    killed_late = step == PUBLISH_STEPS[-1]
    assert seen(bucket, prefix).serving == (2 if killed_late else 1)
    again = publish(place, "new")
    assert (again.release, again.changed) == ("2", not killed_late)
    published = seen(bucket, prefix)
    assert (published.serving, published.current.versions) == (2, {"one": 2, "two": 2})
    assert at_destination(place).listing(Look()).problems == ()


def test_a_publish_that_was_killed_goes_on_at_a_service_without_conditional_writes_too(
    without_conditions, publish
):
    place = without_conditions.destination("killed")
    publish(place, "old")
    # Before the second upload.
    status = in_child(lambda: publish(place, "new", at_step(2, die)))
    assert status == -signal.SIGKILL
    assert seen(without_conditions, "killed").serving == 1
    assert publish(place, "new").facts["uploaded"] == 7
    assert seen(without_conditions, "killed").current.versions == {"one": 2, "two": 2}


@pytest.mark.parametrize("step", PUBLISH_STEPS)
def test_of_two_publishes_at_once_one_wins_whole(bucket, publish, step):
    prefix = f"meet-{step}"
    place = bucket.destination(prefix)
    publish(place, "old")

    def meet() -> None:
        publish(place, "another")

    one_after_the_other = step == PUBLISH_STEPS[-1]
    if one_after_the_other:
        publish(place, "new", at_step(step, meet))
    else:
        with pytest.raises(PublishError, match="someone else has published"):
            publish(place, "new", at_step(step, meet))
    there = bucket.contents(prefix)
    published = whole(there)
    numbers = [release.number for release in published.releases]
    assert numbers == ([1, 2, 3] if one_after_the_other else [1, published.serving])
    weights = published.current.models["one"].files["weights.safetensors"]
    assert weights.bytes == len("another of one")
    for name, model in published.current.models.items():
        config = there[f"{name}/config.pbtxt"]
        assert hashlib.sha256(config).hexdigest() == model.code["config.pbtxt"].sha256


def test_numbers_are_not_given_again_after_a_rollback_and_a_prune(service, publish):
    place = service.destination("numbers")
    publish(place, "old")
    publish(place, "new")
    at = at_destination(place)
    at.rollback(None, Signing(), dry_run=False)
    kept = at.prune((), Signing(), Console("quiet"), dry_run=False)
    assert "name each server with --url" in kept.lines[0]
    assert "one/2/weights.safetensors" in service.contents("numbers")
    # What the server is asked another test shows.
    removed = at.prune(("http://127.0.0.1:1",), Signing(), Console("quiet"), dry_run=False)
    assert removed.facts["removed"] == 8
    assert "one/2/weights.safetensors" not in service.contents("numbers")
    assert publish(place, "another").release == "3"
    assert seen(service, "numbers").current.versions == {"one": 3, "two": 3}


def test_what_was_published_before_is_not_uploaded_again(bucket, publish):
    place = bucket.destination("again")
    publish(place, "old")
    publish(place, "new")
    back = publish(place, "old")
    assert (back.release, back.facts["uploaded"]) == ("3", 0)
    assert seen(bucket, "again").current.versions == {"one": 1, "two": 1}


def test_publishing_what_is_there_writes_nothing(bucket, publish):
    place = bucket.destination("idle")
    publish(place, "old")
    requests: list[str] = []

    def note(client: Any) -> None:
        client.meta.events.register_first(
            "before-send.s3", lambda request, **_: requests.append(request.method)
        )

    assert publish(place, "old", note).changed is False
    assert set(requests) == {"GET"}
    assert len(requests) == 2 + len(MODELS)


def test_a_version_that_lost_a_file_is_a_problem_and_is_published_anew(bucket, publish):
    place = bucket.destination("lost")
    publish(place, "old")
    bucket.client().delete_object(Bucket="models", Key="lost/one/1/weights.safetensors")
    problems = at_destination(place).listing(Look()).problems
    assert problems == ("release 1: one/1/weights.safetensors is missing or damaged",)
    assert publish(place, "old").facts["models"] == {"one": 2, "two": 1}


def test_a_version_that_somebody_has_changed_is_published_anew(bucket, publish):
    place, key = bucket.destination("changed"), "changed/one/1/weights.safetensors"
    publish(place, "old")
    client = bucket.client()
    said = client.head_object(Bucket="models", Key=key)["Metadata"]
    client.put_object(Bucket="models", Key=key, Body=b"bad", Metadata=said)
    done = publish(place, "old")
    assert (done.facts["models"], done.facts["uploaded"]) == ({"one": 2, "two": 1}, 4)
    assert publish(place, "old").changed is False


def test_a_pointer_that_is_not_the_kits_is_left_alone(bucket, publish):
    key = "foreign/published.json"
    bucket.client().put_object(Bucket="models", Key=key, Body=b'{"format": 7}')
    with pytest.raises(PublishError, match=r"published.json cannot be used: format 7"):
        publish(bucket.destination("foreign"), "old")
    assert bucket.contents("foreign") == {"published.json": b'{"format": 7}'}
