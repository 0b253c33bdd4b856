"""Signed places: their histories, and somebody who may write there and has no key.

Whatever that person does, the owner builds on nothing else than what they signed last, and nobody
who verifies reads anything else.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from deploy.host.errors import DeploymentError, SignatureError
from deploy.publishing.place import Look, Signing
from numl_formats.statement import NAME, read_published, statement
from numl_formats.trust import signature_path
from tests.unit.deploy.publishing import test_bucket_histories as buckets
from tests.unit.deploy.publishing import test_folder_histories as folders
from tests.unit.deploy.publishing.history import History
from tests.unit.deploy.publishing.signing import pair, public, sign_bytes, without_cosign
from tests.unit.deploy.publishing.store import small_models
from tests.unit.deploy.publishing.test_folder import small_files


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        small_files(patch)
        small_models(patch, tmp_path_factory.mktemp("models"))
        without_cosign(patch)
        patch.setenv("XDG_STATE_HOME", "")  # each history has its own
        yield


ATTACKS = (
    *("replay", "forge", "change", "nonsense", "key", "line"),
    *("signature", "bare", "all bare", "gone"),
)


class Signed(History):
    """What is signed in a history.

    Attributes:
        said: The owner's statements, the newest last.
    """

    @initialize()
    def take_keys(self) -> None:
        self.host = Path(tempfile.mkdtemp(prefix="numlkit-test-"))
        os.environ["XDG_STATE_HOME"] = str(self.host)
        self.signing, self.others = (Signing(pair(self.host, name)) for name in ("ours", "others"))
        self.look = Look(check=True, verify=public(self.host / "ours.key"))
        self.said: list[bytes] = []

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "host"):
            shutil.rmtree(self.host)

    def put(self, name: str, content: bytes | None) -> None:
        """Write a file there; None: remove it."""
        raise NotImplementedError

    def say(self, content: bytes, key: Path | None) -> None:
        self.put(NAME, content)
        signature = sign_bytes(content, key) if key is not None else None
        self.put(signature_path(content), signature)

    @precondition(lambda self: self.served)
    @rule()
    def go_on_from_another_host(self) -> None:
        """Nothing is remembered there, until it has looked."""
        shutil.rmtree(self.host / "numlkit")
        self.listing()

    @precondition(lambda self: self.served)
    @rule(data=st.data(), how=st.sampled_from(ATTACKS))
    def attack(self, data: st.DataObject, how: str) -> None:
        self.attack_with(how, data.draw(st.sampled_from(self.said)))

    def attack_with(self, how: str, old: bytes) -> None:
        newest = self.said[-1]
        signatures = [signature_path(content) for content in self.said]
        higher = replace(read_published(old), sequence=99)
        before = {name: self.file(name) for name in (NAME, *signatures)}
        if how == "replay":
            if old == newest:
                return
            self.say(old, self.signing.key)
        elif how == "forge":
            self.say(statement(higher), None)
        elif how == "change":
            self.put(NAME, newest + b" ")
        elif how == "nonsense":
            self.put(NAME, b"{}")
        elif how == "key":
            self.say(statement(higher), self.others.key)
        elif how == "line":  # which the owner has signed, for another place
            self.say(statement(replace(higher, line="0" * 16)), self.signing.key)
        elif how == "signature":
            self.put(signatures[-1], b"bm8=")
        elif how == "bare":
            self.put(signatures[-1], None)
        elif how == "all bare":
            for signature in signatures:
                self.put(signature, None)
        else:
            self.put(NAME, None)
        attacked = self.file(NAME)
        for act in (*self.acts("a", self.signing).values(), self.listing):
            with pytest.raises(SignatureError) as caught:
                act()
            assert "\n" not in caught.value.cause
            assert caught.value.remedy
            assert self.file(NAME) == attacked
        for name, content in before.items():
            self.put(name, content)

    @precondition(lambda self: self.served)
    @rule(what=st.sampled_from(["publish", "rollback", "prune"]), others=st.booleans())
    def change_it_without_the_key(self, what: str, others: bool) -> None:
        signing = self.others if others else Signing()
        with pytest.raises(SignatureError if others else DeploymentError):
            self.acts("a", signing)[what]()

    @invariant()
    def statements_are_of_one_line_and_their_number_grows(self) -> None:
        content = self.file(NAME)
        if content is None or content in self.said[-1:]:
            return
        if self.said:
            new, before = read_published(content), read_published(self.said[-1])
            assert (new.line, new.sequence) > (before.line, before.sequence)
            assert new.line == before.line
        self.said.append(content)


class SignedBucket(Signed, buckets.Histories):
    def put(self, name: str, content: bytes | None) -> None:
        self.service.objects.pop(f"prod/{name}", None)
        if content is not None:
            self.service.objects[f"prod/{name}"] = content


class SignedFolder(Signed, folders.Histories):
    def put(self, name: str, content: bytes | None) -> None:
        path = self.root / name
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)


@pytest.fixture
def history() -> Iterator[SignedBucket]:
    """A signed bucket with a release, "a"."""
    found = SignedBucket()
    found.start(conditional=True, tags=True, marks=True)
    found.take_keys()
    found.publish(content="a", with_code=False)
    found.statements_are_of_one_line_and_their_number_grows()
    yield found
    found.teardown()


@pytest.mark.parametrize("how", ATTACKS)
def test_on_what_the_owner_did_not_sign_last_nothing_is_built(history, how):
    history.publish(content="b", with_code=False)
    history.statements_are_of_one_line_and_their_number_grows()
    history.attack_with(how, history.said[0])


@pytest.mark.parametrize("at", range(18, 26))
def test_who_publishes_the_same_at_the_same_time_hears_of_the_other(history, at):
    """Two signatures of one statement differ, and either may be read back as the other."""
    history.two_publish(at=at, mine="b", theirs="b", with_code=False)
    history.what_serves_is_what_should()


@pytest.mark.parametrize("requests", range(4, 12))
def test_a_prune_that_is_killed_and_repeated_at_once_leaves_its_signature(history, requests):
    """In the same second its statement is the same, and so is its signature's name."""
    for content in "bc":
        history.publish(content=content, with_code=False)
    history.kill(content="a", requests=requests, what="prune", with_code=False)
    history.prune()
    history.a_check_finds_exactly_what_is_damaged()


TestSignedBucket = SignedBucket.TestCase
TestSignedBucket.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
TestSignedFolder = SignedFolder.TestCase
TestSignedFolder.settings = settings(max_examples=10, stateful_step_count=12, deadline=None)
