"""Signed releases in a bucket: what is signed, who accepts it, and what nobody can slip in.

Keys are used as cosign uses them; cosign itself is run in tests/containers/supply.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from deploy.host.errors import (
    DamagedError,
    DeploymentError,
    KitError,
    PublishError,
    SignatureError,
)
from deploy.publishing.bucket import BucketPlace
from deploy.publishing.place import Listing, Look, Outcome, Signing
from numl_formats.statement import read_published
from tests.unit.deploy.publishing.signing import pair, public, without_cosign
from tests.unit.deploy.publishing.store import (
    MODELS,
    KilledError,
    Service,
    after,
    bucket_place,
    die,
    prune,
    publish,
    rollback,
    small_models,
)

POINTER = "prod/published.json"
ONE = MODELS[:1]
DAY = timedelta(days=1)
# Fewer requests than any publish makes.
MANY = 20


class Place:
    """A bucket in memory, and a publisher's machine."""

    def __init__(self, scratch: Path) -> None:
        self.service = Service()
        self.key, self.other = pair(scratch, "ours"), pair(scratch, "others")
        self.keys = itertools.count()

    @property
    def at(self) -> BucketPlace:
        return bucket_place(self.service)

    def publish(self, *contents: str, **more: Any) -> Outcome:
        """Publish these, one after the other; return what was done with the last."""
        return [publish(self.service, content, **more) for content in contents][-1]

    def sign(self, *contents: str, **more: Any) -> Outcome:
        return self.publish(*contents, sign=self.key, **more)

    def rollback(self, key: Path | None) -> Outcome:
        return rollback(self.service, Signing(key))

    def prune(self, key: Path | None) -> Outcome:
        return prune(self.service, Signing(key))

    def begin_anew(self) -> None:
        """Take an empty bucket, and a key that nothing is remembered of."""
        self.service = Service()
        self.key = pair(self.key.parent, f"key{next(self.keys)}")

    def killed_anywhere(
        self, before: Callable[[], object], act: Callable[[], object]
    ) -> Iterator[None]:
        """Yield after ``before`` and ``act``, which was killed at its nth request, for all n."""
        for requests in itertools.count():
            self.begin_anew()
            before()
            self.service.step = after(requests, die)
            killed = True
            with suppress(KilledError):
                act()
                killed = False
            self.service.step = lambda: None
            yield
            if not killed:
                break
        assert requests > MANY

    def verified(self) -> Listing:
        return self.at.listing(Look(verify=public(self.key)))

    @property
    def serving(self) -> list[int]:
        return [int(entry.release) for entry in self.verified().entries if entry.serving]


@pytest.fixture
def place(home, monkeypatch):
    without_cosign(monkeypatch)
    small_models(monkeypatch, home)
    return Place(home)


def test_a_statement_that_serves_is_signed_wherever_a_publish_is_killed(place):
    for _ in place.killed_anywhere(lambda: place.sign("a"), lambda: place.sign("b")):
        assert place.verified().problems == ()


def test_an_unsigned_act_on_a_signed_line_and_one_of_another_key_are_refused(place):
    place.sign(*"ac")
    before = dict(place.service.objects)
    with pytest.raises(DeploymentError, match="is signed: unsigned, every server") as raised:
        place.publish("b")
    assert raised.value.remedy == "--sign KEY"
    with pytest.raises(SignatureError, match="is not signed with the key that is trusted"):
        place.publish("b", sign=place.other)
    assert place.service.objects == before


def test_releases_that_nobody_signed_are_not_signed_later(place):
    """Whoever could write to the bucket until now may have written them."""
    place.publish(*"ab")
    with pytest.raises(PublishError, match="two was published unsigned") as raised:
        place.sign("b", models=ONE)
    assert raised.value.remedy == "publish two too (--models)"
    place.sign("b")
    published = read_published(place.service.objects[POINTER])
    assert (published.served, published.last) == ((3,), 3)
    assert [release.number for release in published.releases] == [3]
    with pytest.raises(PublishError, match="none served before it"):
        place.rollback(place.key)


@pytest.mark.parametrize("name", ["sequence", "last"])
def test_a_statement_after_which_none_can_follow_is_refused(place, name):
    """Whoever can write to an unsigned bucket may have counted as far as anybody can."""
    place.publish("a")
    said = json.loads(place.service.objects[POINTER]) | {name: (1 << 53) - 1}
    place.service.objects[POINTER] = content = json.dumps(said).encode()
    with pytest.raises(DamagedError, match="9007199254740992, not a number") as raised:
        place.publish("b")
    assert raised.value.remedy == "publish to another place, or restore the file"
    assert place.service.objects[POINTER] == content


def test_a_signed_rollback_of_what_was_never_signed_is_told_so(place):
    place.publish(*"ab")
    with pytest.raises(PublishError, match="nothing signed is published in s3://") as raised:
        place.rollback(place.key)
    assert (raised.value.remedy or "").endswith(f"--sign {place.key}")


def test_an_expired_statement_is_refused_until_it_is_renewed(place):
    place.sign("a", valid_for=-DAY)
    with pytest.raises(SignatureError, match="has expired") as raised:
        place.verified()
    assert "--valid-for DAYS" in str(raised.value.remedy)
    again = place.sign("a", valid_for=DAY)
    assert again.changed
    assert again.lines[0] == "release 1 serves as before"
    assert again.lines[1].startswith("its signature expires ")
    assert place.serving == [1]
    assert not place.sign("a").changed


def test_an_expiry_stays_until_it_is_set_anew(place):
    place.sign("a")
    place.sign("a", valid_for=DAY)
    until = read_published(place.service.objects[POINTER]).expires
    assert until is not None
    for act in (
        partial(place.sign, "b"),
        partial(place.sign, "c"),
        partial(place.rollback, place.key),
        partial(place.sign, "c"),
        partial(place.prune, place.key),
    ):
        assert act().changed
        assert read_published(place.service.objects[POINTER]).expires == until


def test_a_rollback_to_what_serves_renews_it_where_that_is_asked_for(place):
    place.sign("a", valid_for=-DAY)
    again = place.at.rollback("1", Signing(place.key, DAY), dry_run=True)
    assert (again.changed, again.lines) == (False, ("would renew release 1",))
    again = place.at.rollback("1", Signing(place.key, DAY), dry_run=False)
    assert (again.changed, again.lines[0]) == (True, "release 1 serves as before")
    assert place.serving == [1]
    assert not place.at.rollback("1", Signing(place.key), dry_run=False).changed


def test_a_prune_in_the_middle_of_another_act_costs_no_statement_its_signature(place):
    def prune() -> None:
        place.service.step = lambda: None
        pruned.append(place.prune(place.key))

    pruned: list[Outcome] = []
    for request in itertools.count():
        place.begin_anew()
        for content, more in (("a", {}), ("b", {}), ("b", {"valid_for": DAY})):
            place.sign(content, **more)
        place.service.step = after(request, prune)
        with suppress(KitError):
            place.rollback(place.key)
        place.service.step = lambda: None
        assert place.verified().problems == ()
        if len(pruned) == request:  # the rollback came to its end before
            break
    assert request > 10


@pytest.mark.parametrize("change", ["rollback", "sign"])
def test_nothing_is_signed_that_has_expired_already(place, change):
    place.sign("a")
    place.sign("b", valid_for=-DAY)
    before = dict(place.service.objects)
    with pytest.raises(DeploymentError, match="its signature expired") as raised:
        place.rollback(place.key) if change == "rollback" else place.sign("c")
    assert "--valid-for" in str(raised.value.remedy)
    assert place.service.objects == before


def test_without_a_key_there_is_no_expiry_and_with_code_no_signature(place):
    with pytest.raises(DeploymentError, match="--valid-for needs --sign KEY"):
        place.publish("a", valid_for=DAY)
    with pytest.raises(DeploymentError, match="which checks no signature"):
        place.sign("a", with_code=True)
    assert place.service.objects == {}


def test_a_bucket_has_data_only_unless_code_is_asked_for(place):
    said = place.publish("a")
    assert said.lines[-1] == "not signed: servers cannot verify it (--sign KEY)"
    assert {key.rpartition("/")[2] for key in place.service.objects} == {
        "published.json", "model.json", "weights.safetensors",
    }  # fmt: skip
    place.publish("a", with_code=True)
    there = place.service.objects
    assert there["prod/one/config.pbtxt"] == there["prod/one/2/config.pbtxt"]
    assert b"versions: 2" in there["prod/one/config.pbtxt"]
    place.publish("b", with_code=True)
    assert b"versions: 3" in there["prod/one/config.pbtxt"]
    place.rollback(None)
    assert b"versions: 2" in there["prod/one/config.pbtxt"]
    said = place.rollback(None)
    assert "one has no code in release 1" in said.lines[1]
    assert b"versions: 2" in there["prod/one/config.pbtxt"]


def test_a_bucket_of_an_older_kit_is_published_to_without_its_code(place):
    card = sha256(b"card").hexdigest()
    code = sha256(b"run").hexdigest()
    old = (
        '{"format": 1, "serving": 1, "last": 1, "releases": [{"number": 1, "created": '
        '"2026-11-23T02:27:00Z", "revision": "r", "models": {"one": {"version": 1, "config": "x", '
        f'"files": {{"model.json": {{"sha256": "{card}", "bytes": 4}}, '
        f'"model.py": {{"sha256": "{code}", "bytes": 3}}}}}}}}}}]}}'
    )
    place.service.objects |= {
        POINTER: old.encode(), "prod/one/1/model.json": b"card", "prod/one/1/model.py": b"run",
        "prod/one/config.pbtxt": b"x",
    }  # fmt: skip
    assert place.at.listing(Look(check=True)).problems == ()
    said = place.publish("a")
    assert "one has no code in release 2" in said.lines[1]
    published = read_published(place.service.objects[POINTER])
    assert (published.served, published.sequence) == ((1, 2), 1)
    place.rollback(None)
    assert read_published(place.service.objects[POINTER]).served == (1,)
    place.service.metadata["prod/one/config.pbtxt"] = {"sha256": "it marked them, too"}
    place.prune(None)
    place.publish("b")
    place.prune(None)
    assert place.service.objects["prod/one/config.pbtxt"] == b"x"
    assert place.service.objects["prod/one/1/model.py"] == b"run"


@pytest.mark.parametrize("over_unsigned", [False, True])
def test_a_first_signed_publish_that_is_killed_at_any_request_is_repeated(over_unsigned, place):
    left = set()
    before = partial(place.publish, "b") if over_unsigned else lambda: None
    for _ in place.killed_anywhere(before, lambda: place.sign("a")):
        left |= {key.split("/")[1] for key in place.service.objects}
        place.sign("a")
        assert place.serving == [2 if over_unsigned else 1]
        assert place.verified()
    assert left == {"one", "two", "signatures", "published.json"}


def test_a_configuration_that_the_kit_did_not_write_is_named_and_left_alone(place):
    place.publish("a", models=ONE)
    place.publish("b")
    place.rollback(None)
    place.publish("c", models=ONE)
    place.service.objects["prod/two/config.pbtxt"] = b"mine"
    notes = place.at.listing(Look(check=True)).notes
    assert notes == ("not published by the kit: two/config.pbtxt",)
    assert place.prune(None).changed
    assert place.service.objects["prod/two/config.pbtxt"] == b"mine"
