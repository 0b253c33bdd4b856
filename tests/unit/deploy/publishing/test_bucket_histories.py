"""A bucket's history: whatever is done, killed or damaged, what serves is what should, whole.

The bucket is in memory, and has variants without conditional writes, ETags and metadata; real
services are published to in tests/integration.
"""

import hashlib
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deploy.host.errors import PublishError, SignatureError
from deploy.publishing.contents import files_of
from deploy.publishing.place import Look, Signing
from numl_formats.published import Published
from numl_formats.statement import read_published
from tests.unit.deploy.publishing.store import (
    KilledError,
    Service,
    after,
    after_rollback,
    bucket_place,
    die,
    prune,
    publish,
    rollback,
    small_models,
)

CONTENTS = ("a", "b", "c", "d")
# What people have put there: the kit leaves it alone.
PEOPLES = {
    f"prod/{key}": b"mine"
    for key in (
        "one/1/thesis.txt",
        "one/1/golden.npz",
        "one/2/weights/x",
        "two/README",
        "three/1/model.json",
        "x.sig",
    )
}


@pytest.fixture(scope="module", autouse=True)
def models(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        small_models(patch, tmp_path_factory.mktemp("models"))
        yield


def statement(service: Service) -> Published | None:
    content = service.objects.get("prod/published.json")
    return read_published(content) if content is not None else None


def killed(service: Service, requests: int, act: Callable[[Service], object]) -> Service | None:
    """Return a copy of the bucket after an act was killed in it; None: it came to its end."""
    objects, metadata = dict(service.objects), dict(service.metadata)
    copy = Service(objects=objects, metadata=metadata, step=after(requests, die))
    try:
        act(copy)
    except KilledError:
        copy.step = lambda: None
        return copy
    return None


def test_a_place_in_which_somebody_publishes_is_whole_at_any_moment():
    for requests in range(20):
        service = Service()
        publish(service, "a")
        other = Service(objects=service.objects, metadata=service.metadata)
        service.step = after(requests, lambda: publish(other, "b"))  # noqa: B023
        assert bucket_place(service).listing(Look()).problems == ()


def test_a_model_that_is_damaged_is_not_taken_into_the_next_release():
    service = Service()
    publish(service, "a")
    key = "prod/two/1/weights.safetensors"
    service.objects[key] = b"!" * len(service.objects[key])
    with pytest.raises(PublishError, match=f"{key} is missing or damaged") as raised:
        publish(service, "b", ("one",))
    assert raised.value.remedy == "publish two too (--models), or another release"
    assert statement(service).serving == 1
    assert publish(service, "b").release == "2"


def test_a_prune_that_is_killed_is_repeated_and_leaves_nothing_of_a_model_that_has_gone():
    service = Service()
    publish(service, "a", ("one",), with_code=True)
    publish(service, "b", ("two",), with_code=True)
    rollback(service, Signing(), "1")
    for requests in itertools.count():
        left = killed(service, requests, lambda there: prune(there, Signing()))
        if left is None:
            break
        prune(left, Signing())
        assert not [key for key in left.objects if key.startswith("prod/two/")]
        assert "prod/one/config.pbtxt" in left.objects
    assert requests > 10


def test_what_a_killed_first_publish_of_a_model_left_is_pruned():
    service = Service()
    publish(service, "a", ("one",))
    left = killed(service, 12, lambda there: publish(there, "b", ("two",)))
    assert left is not None
    assert [key for key in left.objects if key.startswith("prod/two/")]
    publish(left, "b", ("one",))
    prune(left, Signing())
    assert not [key for key in left.objects if key.startswith("prod/two/")]


class Histories(RuleBasedStateMachine):
    """A bucket, and what should be in it: numbers of what served, and each release's content."""

    signing, look = Signing(), Look(check=True)

    @initialize(conditional=st.booleans(), tags=st.booleans(), marks=st.booleans())
    def start(self, conditional: bool, tags: bool, marks: bool) -> None:
        self.service = Service(conditional, tags, marks, objects=dict(PEOPLES))
        self.served: list[int] = []
        self.contents: dict[int, str] = {}
        self.damaged: set[str] = set()
        self.last = 0

    def whole(self, number: int) -> bool:
        published = statement(self.service)
        release = published.release(number)
        one = Published("", 0, release.created, None, (number,), number, (release,))
        return not self.damaged & files_of(one).keys()

    def has_published(self, content: str) -> None:
        """Take over what a publish has done: a new release, unless the same serves whole."""
        published = statement(self.service)
        if self.served and published.serving == self.served[-1]:
            assert self.contents[self.served[-1]] == content
            return
        assert published.serving > self.last
        self.last = published.serving
        self.served.append(self.last)
        self.contents[self.last] = content
        assert self.whole(self.last)

    def run_publish(self, content: str, *, with_code: bool = False) -> None:
        # Code is not signed.
        code, key = with_code and self.signing.key is None, self.signing.key
        publish(self.service, content, with_code=code, sign=key)

    def acts(self, content: str, signing: Signing) -> dict[str, Callable[[], object]]:
        return {
            "publish": lambda: publish(self.service, content, sign=signing.key),
            "rollback": lambda: rollback(self.service, signing),
            "prune": lambda: prune(self.service, signing),
        }

    @rule(content=st.sampled_from(CONTENTS), with_code=st.booleans())
    def publish(self, content: str, with_code: bool) -> None:
        self.run_publish(content, with_code=with_code)
        self.has_published(content)
        assert self.whole(self.served[-1])

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        to = data.draw(st.none() | st.sampled_from(list(self.contents)))
        served = after_rollback(self.served, to)
        if served is None or not self.whole(served[-1]):
            with pytest.raises(PublishError):
                rollback(self.service, self.signing, str(to) if to is not None else None)
            return
        rollback(self.service, self.signing, str(to) if to is not None else None)
        self.served = served

    @rule(content=st.sampled_from(CONTENTS), which=st.integers(0, 5))
    def lose_bytes(self, content: str, which: int) -> None:
        """A service confirms a file of a publish, and does not keep all of it."""
        before, wrote = self.service.objects.get("prod/published.json"), itertools.count()

        def spoil(key: str, content: bytes) -> bytes:
            lost = not key.endswith("/published.json") and next(wrote) == which
            return content[:-1] if lost else content

        self.service.spoil = spoil
        refused = ""
        try:
            self.run_publish(content)
        except PublishError as error:
            refused = error.cause
        finally:
            self.service.spoil = lambda _, content: content
        if next(wrote) <= which:
            assert not refused
            self.has_published(content)
        else:
            assert "does not hold what was sent to it" in refused
            assert self.service.objects.get("prod/published.json") == before

    @precondition(lambda self: self.served)
    @rule()
    def prune(self) -> None:
        before = set(self.service.objects)
        removed = prune(self.service, self.signing).facts["removed"]
        assert removed == len(before - self.service.objects.keys())
        self.has_pruned()

    def has_pruned(self) -> None:
        published = statement(self.service)
        if len(published.releases) <= 2:
            self.served = self.served[-2:]
            self.contents = {number: self.contents[number] for number in self.served}

    @rule(
        content=st.sampled_from(CONTENTS),
        what=st.sampled_from(["publish", "rollback", "prune"]),
        with_code=st.booleans(),
        requests=st.integers(0, 80),
    )
    def kill(self, content: str, what: str, with_code: bool, requests: int) -> None:
        before = self.service.objects.get("prod/published.json")
        served = after_rollback(self.served, None)
        acts = self.acts(content, self.signing)
        acts["publish"] = lambda: self.run_publish(content, with_code=with_code)
        self.service.step = after(requests, die)
        with suppress(KilledError, PublishError):
            acts[what]()
        self.service.step = lambda: None
        if self.service.objects.get("prod/published.json") == before:
            return
        if what == "publish":
            self.has_published(content)
        elif what == "rollback":
            self.served = served
        else:
            self.has_pruned()

    # A service that knows no conditions is asked before each write: this may come in between.
    @precondition(lambda self: self.served and self.service.conditional and self.service.tags)
    @rule(
        mine=st.sampled_from(CONTENTS),
        theirs=st.sampled_from(CONTENTS),
        with_code=st.booleans(),
        at=st.integers(0, 60),
    )
    def two_publish(self, mine: str, theirs: str, with_code: bool, at: int) -> None:
        """Another publish comes in between, whole."""
        before = self.service.objects["prod/published.json"]
        theirs_left: list[Any] = []

        def other() -> None:
            self.service.step = lambda: None
            if self.service.objects["prod/published.json"] != before:
                self.has_published(mine)  # all that is missing is its answer
            self.run_publish(theirs, with_code=with_code)
            self.has_published(theirs)
            theirs_left.append(self.service.objects["prod/published.json"])

        self.service.step = after(at, other)
        try:
            self.run_publish(mine, with_code=with_code)
        except (PublishError, SignatureError) as error:
            refused = error.cause
        else:
            refused = ""
            # Also if the other one was there before ours had looked at anything.
            if theirs_left != [self.service.objects["prod/published.json"]]:
                self.has_published(mine)
        finally:
            self.service.step = lambda: None
        # What both remember on this host may be newer than what ours has read.
        words = ("someone else has published", "someone else has written", "is an old one")
        assert not refused or any(each in refused for each in words)

    @precondition(lambda self: self.served)
    @rule(data=st.data(), lose=st.booleans())
    def damage(self, data: st.DataObject, lose: bool) -> None:
        published = statement(self.service)
        key = data.draw(st.sampled_from(sorted(files_of(published))))
        if f"prod/{key}" not in self.service.objects:
            return
        if lose:
            del self.service.objects[f"prod/{key}"]
        else:
            content = self.service.objects[f"prod/{key}"]
            self.service.objects[f"prod/{key}"] = b"!" * len(content)
        self.damaged.add(key)

    @invariant()
    def what_serves_is_what_should(self) -> None:
        published = statement(self.service)
        if not self.served:
            assert published is None
            return
        assert list(published.served) == self.served
        assert {release.number for release in published.releases} == set(self.contents)
        assert published.last == self.last
        for key, file in files_of(published).items():
            content = self.service.objects.get(f"prod/{key}")
            if key not in self.damaged:
                assert content is not None, key
                assert hashlib.sha256(content).hexdigest() == file.sha256
        for number, content in self.contents.items():
            weights = published.release(number).models["one"].files["weights.safetensors"]
            assert weights.sha256 == hashlib.sha256(f"{content} of one".encode()).hexdigest()

    @invariant()
    def what_people_put_there_stays(self) -> None:
        assert PEOPLES.items() <= self.service.objects.items()

    @precondition(lambda self: self.served)
    @invariant()
    def a_check_finds_exactly_what_is_damaged(self) -> None:
        listing = bucket_place(self.service).listing(self.look)
        found = {int(entry.release) for entry in listing.entries if entry.damaged}
        assert found == {number for number in self.contents if not self.whole(number)}
        if found:
            assert listing.problems


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)
