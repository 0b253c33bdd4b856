"""A bucket's history: whatever is done, killed or damaged, what serves is what should, whole.

The bucket is in memory, and has variants without conditional writes, ETags and metadata; real
services are published to in tests/integration.
"""

import hashlib
import itertools
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from deploy.host.errors import PublishError, SignatureError
from deploy.publishing.bucket import BucketPlace
from deploy.publishing.contents import files_of
from deploy.publishing.place import Look, Signing
from numl_formats.published import Published
from numl_formats.statement import NAME, read_published
from tests.unit.deploy.publishing.history import History, after_rollback
from tests.unit.deploy.publishing.store import (
    SERVERS,
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
    assert read_published(service.objects["prod/published.json"]).serving == 1
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


def test_a_prune_leaves_no_configuration_that_names_a_version_that_it_removes():
    service = Service()
    publish(service, "a", with_code=True)
    publish(service, "b", ("one",))
    prune(service, Signing())
    assert "prod/one/config.pbtxt" in service.objects  # release 1 is kept
    publish(service, "c", ("one",))
    for requests in itertools.count():
        left = killed(service, requests, lambda there: prune(there, Signing()))
        if left is None:
            break
        prune(left, Signing())
        assert {key for key in left.objects if key.endswith("/config.pbtxt")} == {
            "prod/two/1/config.pbtxt",
            "prod/two/config.pbtxt",
        }
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


class Histories(History):
    """A bucket, and what should be in it."""

    servers = SERVERS

    @initialize(conditional=st.booleans(), tags=st.booleans(), marks=st.booleans())
    def start(self, conditional: bool, tags: bool, marks: bool) -> None:
        self.service = Service(conditional, tags, marks, objects=dict(PEOPLES))
        self.damaged: set[str] = set()

    @property
    def place(self) -> BucketPlace:
        return bucket_place(self.service)

    def file(self, name: str) -> bytes | None:
        return self.service.objects.get(f"prod/{name}")

    def whole(self, number: int) -> bool:
        release = self.published().release(number)
        one = Published("", 0, release.created, None, (number,), number, (release,))
        return not self.damaged & files_of(one).keys()

    def has_published(self, content: str) -> None:
        """Take over what a publish has done: a new release, unless the same serves whole."""
        if self.served and self.published().serving == self.served[-1]:
            assert self.contents[self.served[-1]] == content
            return
        super().has_published(content)
        assert self.whole(self.last)

    def run_publish(self, content: str, signing: Signing, *, with_code: bool = False) -> None:
        # Code is not signed.
        code = with_code and signing.key is None
        publish(self.service, content, with_code=code, sign=signing.key)

    @rule(content=st.sampled_from(CONTENTS), with_code=st.booleans())
    def publish(self, content: str, with_code: bool) -> None:
        self.run_publish(content, self.signing, with_code=with_code)
        self.has_published(content)
        assert self.whole(self.served[-1])

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        to = data.draw(st.none() | st.sampled_from(list(self.contents)))
        served = after_rollback(self.served, to)
        if served is None or not self.whole(served[-1]):
            with pytest.raises(PublishError):
                self.run_rollback(to, self.signing)
            return
        self.run_rollback(to, self.signing)
        self.served = served

    @rule(content=st.sampled_from(CONTENTS), which=st.integers(0, 5))
    def lose_bytes(self, content: str, which: int) -> None:
        """A service confirms a file of a publish, and does not keep all of it."""
        before, wrote = self.file(NAME), itertools.count()

        def spoil(key: str, content: bytes) -> bytes:
            lost = not key.endswith("/published.json") and next(wrote) == which
            return content[:-1] if lost else content

        self.service.spoil = spoil
        refused = ""
        try:
            self.run_publish(content, self.signing)
        except PublishError as error:
            refused = error.cause
        finally:
            self.service.spoil = lambda _, content: content
        if next(wrote) <= which:
            assert not refused
            self.has_published(content)
        else:
            assert "does not hold what was sent to it" in refused
            assert self.file(NAME) == before

    @precondition(lambda self: self.served)
    @rule()
    def prune(self) -> None:
        before = set(self.service.objects)
        removed = self.run_prune(self.signing).facts["removed"]
        assert removed == len(before - self.service.objects.keys())
        self.has_pruned()

    @rule(
        content=st.sampled_from(CONTENTS),
        what=st.sampled_from(["publish", "rollback", "prune"]),
        with_code=st.booleans(),
        requests=st.integers(0, 80),
    )
    def kill(self, content: str, what: str, with_code: bool, requests: int) -> None:
        before, acts = self.file(NAME), self.acts(content, self.signing)
        acts["publish"] = lambda: self.run_publish(content, self.signing, with_code=with_code)
        self.service.step = after(requests, die)
        with suppress(KilledError, PublishError):
            acts[what]()
        self.service.step = lambda: None
        self.has_done(what, content, before)

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
        before = self.file(NAME)
        theirs_left: list[bytes | None] = []

        def other() -> None:
            self.service.step = lambda: None
            if self.file(NAME) != before:
                self.has_published(mine)  # all that is missing is its answer
            self.run_publish(theirs, self.signing, with_code=with_code)
            self.has_published(theirs)
            theirs_left.append(self.file(NAME))

        self.service.step = after(at, other)
        try:
            self.run_publish(mine, self.signing, with_code=with_code)
        except (PublishError, SignatureError) as error:
            refused = error.cause
        else:
            refused = ""
            # Also if the other one was there before ours had looked at anything.
            if theirs_left != [self.file(NAME)]:
                self.has_published(mine)
        finally:
            self.service.step = lambda: None
        # What both remember on this host may be newer than what ours has read.
        words = ("someone else has published", "someone else has written", "is an old one")
        assert not refused or any(each in refused for each in words)

    @precondition(lambda self: self.served)
    @rule(data=st.data(), lose=st.booleans())
    def damage(self, data: st.DataObject, lose: bool) -> None:
        key = data.draw(st.sampled_from(sorted(files_of(self.published()))))
        if f"prod/{key}" not in self.service.objects:
            return
        if lose:
            del self.service.objects[f"prod/{key}"]
        else:
            content = self.service.objects[f"prod/{key}"]
            self.service.objects[f"prod/{key}"] = b"!" * len(content)
        self.damaged.add(key)

    @precondition(lambda self: self.served)
    @invariant()
    def what_serves_is_what_should(self) -> None:
        published = self.published()
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
        listing = self.listing()
        found = {int(entry.release) for entry in listing.entries if entry.damaged}
        assert found == {number for number in self.contents if not self.whole(number)}
        if found:
            assert listing.problems


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)
