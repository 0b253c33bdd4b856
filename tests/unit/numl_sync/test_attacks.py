"""An attacker with the bucket's credentials: only what was signed serves."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from played import (
    KEY,
    POLL_S,
    TODAY,
    PlayedBucket,
    Stage,
    card,
    expected,
    file_of,
    files,
    release,
    sign,
)

from numl_formats.published import published_release, renewed, rolled_back
from numl_formats.statement import statement
from numl_formats.trust import signature_path

EVIL = b"import os  # of the attacker"
LISTED = {"sha256": file_of(EVIL).sha256, "bytes": len(EVIL)}
LIFE = timedelta(days=30)
WEIGHTS = "weights.safetensors"


@dataclass
class Attacker:
    """Changes a bucket in which the owner has published releases 1, 2 and 3."""

    bucket: PlayedBucket
    statements: Mapping[int, bytes]

    @property
    def newest(self) -> bytes:
        return self.statements[3]

    def put(self, path: str, content: bytes) -> None:
        self.bucket.objects[path] = content
        self.bucket.content = self.newest

    def remove(self, path: str) -> None:
        del self.bucket.objects[path]
        self.bucket.content = self.newest

    def say(self, content: bytes, signature: bytes | None = None) -> None:
        """Replace the statement; without a signature, put the newest one's beside it."""
        own = self.bucket.objects[signature_path(self.newest)]
        self.bucket.objects[signature_path(content)] = own if signature is None else signature
        self.bucket.content = content

    def edit(self, **changes: Any) -> None:
        self.say(json.dumps(json.loads(self.newest) | changes).encode())

    def bring(self, path: str) -> None:
        """Put a file of its own into the release, with its right digest."""
        self.bucket.objects[f"a/3/{path}"] = EVIL
        releases = json.loads(self.newest)["releases"]
        releases[-1]["models"]["a"]["files"][path] = LISTED
        self.edit(releases=releases)


def format_1(by: Attacker) -> None:
    listed = dict.fromkeys((*files(3), "model.py"), LISTED)
    model = {"version": 9, "config": 'name: "a"', "files": listed}
    new = {"number": 9, "created": "2026-11-24T00:00:00Z", "revision": "x", "models": {"a": model}}
    for path in listed:
        by.bucket.objects[f"a/9/{path}"] = EVIL
    by.say(json.dumps({"format": 1, "serving": 9, "last": 9, "releases": [new]}).encode())


FILES: dict[str, Callable[[Attacker], object]] = {
    "other weights": lambda by: by.put(f"a/3/{WEIGHTS}", b"x" * 1001),
    "shorter weights": lambda by: by.put(f"a/3/{WEIGHTS}", b"w" * 1000),
    "longer weights": lambda by: by.put(f"a/3/{WEIGHTS}", b"w" * 1002),
    "empty weights": lambda by: by.put(f"a/3/{WEIGHTS}", b""),
    "no weights": lambda by: by.remove(f"a/3/{WEIGHTS}"),
    "another card": lambda by: by.put("a/3/model.json", card(7)),
    "no card": lambda by: by.remove("a/3/model.json"),
    "another reference answer": lambda by: by.put("a/3/golden.npz", EVIL),
    "no reference answer": lambda by: by.remove("a/3/golden.npz"),
}
"""The statement is the owner's; one file of the release that it names is not."""

FORGED: dict[str, Callable[[Attacker], object]] = {
    "own weights with their digest": lambda by: by.bring(WEIGHTS),
    "config.pbtxt with its digest": lambda by: by.bring("config.pbtxt"),
    "a path that climbs": lambda by: by.bring("../../../etc/cron.d/x"),
    "a rollback of its own": lambda by: by.edit(serving=1, served=[1], sequence=9),
    "a higher sequence number": lambda by: by.edit(sequence=9),
    "no expiry": lambda by: by.edit(expires=None),
    "a format of before signatures": format_1,
    "a key twice": lambda by: by.say(b'{"serving": 1, ' + by.newest[1:]),
    "a truncated statement": lambda by: by.say(by.newest[:-100]),
    "an empty statement": lambda by: by.say(b""),
    "a deeply nested statement": lambda by: by.say(b'{"format": ' * 100_000),
    "an older one, signed by the new one": lambda by: by.say(by.statements[1]),
    "a signature by another key": lambda by: by.say(by.newest, sign(by.newest, "another")),
    "an empty signature": lambda by: by.say(by.newest, b""),
    "a long signature": lambda by: by.say(by.newest, b"A" * 4096),
    "no signature": lambda by: by.remove(signature_path(by.newest)),
}
"""No statement with a signature of the owner's: one of each kind, as nothing of it is read."""


def replay(by: Attacker) -> None:
    by.say(by.statements[1], sign(by.statements[1]))


IGNORED = (
    *("a/3/model.py", "a/model.py", "a/config.pbtxt", "a/4/model.py", "evil/1/model.py"),
    *("a/3/__pycache__/model.cpython-311.pyc", "a/3/../../x"),
)
"""Objects that no statement names."""


@pytest.fixture
def owned(tmp_path):
    """A server with release 2 of an owner who signs, and has just published release 3."""
    stage = Stage(tmp_path / "mirror", key=KEY)
    bucket = stage.bucket
    bucket.key, bucket.expires = KEY, TODAY + LIFE
    statements = {}
    for number in (1, 2, 3):
        if number == 3:
            stage.run(10)
            assert stage.tree() == expected(2)
        bucket.publish(number, number)
        statements[number] = bucket.content
    return stage, Attacker(bucket, statements)


def fresh(stage: Stage, **more: Any) -> Stage:
    """A server that starts now, with an empty folder."""
    folder = stage.folder.with_name("fresh")
    return Stage(folder, stage.bucket, key=KEY, today=stage.today, **more)


@pytest.mark.parametrize("attack", FILES.values(), ids=[*FILES])
def test_another_file_than_the_signed_one_is_refused(owned, attack):
    stage, attacker = owned
    attack(attacker)
    stage.run(10 * POLL_S)
    assert stage.tree() == expected(2)
    assert (stage.agent.status.release, stage.agent.status.refused) == (2, True)
    assert stage.agent.status.failures["release"] == 1
    new = fresh(stage)
    new.run(10 * POLL_S)
    assert new.tree() == expected(2)
    assert new.agent.status.refused


@pytest.mark.parametrize(
    ("attack", "reason"),
    [*((attack, "signature") for attack in FORGED.values()), (replay, "replay")],
    ids=[*FORGED, "an older statement"],
)
def test_a_statement_that_the_owner_did_not_sign_last_is_refused(owned, attack, reason):
    stage, attacker = owned
    attack(attacker)
    read = len(stage.bucket.asked_for)
    stage.run(10 * POLL_S)
    stage.start()
    stage.run(10 * POLL_S)
    assert stage.tree() == expected(2)
    assert (stage.agent.status.release, stage.agent.status.refused) == (2, True)
    assert stage.refusals == {reason}
    # Nothing that such a statement names is even read.
    assert all(path.startswith("signatures/") for path in stage.bucket.asked_for[read:])
    new = fresh(stage, least=3)
    new.run(10 * POLL_S)
    assert new.tree() == {}
    assert new.agent.status.refused


def test_what_no_statement_names_is_not_read(owned):
    stage, attacker = owned
    for path in IGNORED:
        attacker.put(path, EVIL)
    stage.run(10 * POLL_S)
    assert stage.tree() == expected(3)
    named = {signature_path(content) for content in attacker.statements.values()}
    named |= {f"{model}/{n}/{path}" for model in "ab" for n in (2, 3) for path in files(n)}
    assert set(stage.bucket.asked_for) <= named
    assert not stage.agent.status.refused


def test_a_signed_statement_cannot_bring_code_either(owned):
    stage, attacker = owned
    model = replace(release(4, 4).models["a"], code={"model.py": file_of(EVIL)})
    new = replace(release(4, 4), models={"a": model, "b": release(4, 4).models["b"]})
    for name in ("a", "b"):
        for path, content in {**files(4), "model.py": EVIL, "config.pbtxt": EVIL}.items():
            attacker.bucket.objects[f"{name}/4/{path}"] = content
    history = published_release(attacker.bucket.history, new, created=TODAY, expires=TODAY + LIFE)
    attacker.bucket.put(history)
    stage.run(10)
    assert stage.tree() == expected(4)
    assert not any(path.endswith((".py", ".pbtxt")) for path in attacker.bucket.asked_for)


@pytest.mark.parametrize("reason", ["replay", "line", "expired"])
def test_what_the_owner_signed_elsewhere_or_long_ago_is_refused(owned, reason):
    stage, attacker = owned
    stage.run(10)
    history = stage.bucket.history
    other = {
        "replay": renewed(history, created=TODAY, expires=TODAY + 2 * LIFE),
        "line": replace(history, line="0" * 16, sequence=99),
        "expired": renewed(history, created=TODAY, expires=TODAY),
    }[reason]
    if reason == "replay":  # a second one with the number of the newest
        other = replace(other, sequence=history.sequence)
    content = statement(other)
    attacker.say(content, sign(content))
    stage.run(10 * POLL_S)
    assert stage.tree() == expected(3)
    assert stage.refusals == {reason}
    assert stage.agent.status.refused
    # The owner mends it with the next statement.
    stage.bucket.put(rolled_back(history, 2, created=TODAY, expires=TODAY + LIFE))
    stage.run(10 * POLL_S)
    assert stage.tree() == expected(2)
    assert not stage.agent.status.refused


def test_a_bucket_that_is_frozen_is_noticed_when_its_statement_expires(owned):
    stage, _ = owned
    stage.run(10)
    assert not stage.agent.status.refused
    stage.today = TODAY + LIFE
    stage.run(10)
    assert stage.agent.status.refused
    assert stage.agent.status.refused_statements["expired"] > 0
    assert stage.said[-1] == (
        "refused: published.json has expired: 2026-12-24T00:00:00Z; release 3 stays in service"
    )
    stage.start()
    stage.run(10)
    assert stage.tree() == expected(3)
    new = fresh(stage)
    new.run(10)
    assert new.tree() == {}


def test_a_clock_that_was_wrong_for_a_while_leaves_nothing_refused(owned):
    stage, _ = owned
    stage.run(10)
    stage.today = TODAY + 2 * LIFE
    stage.run(10)
    assert stage.agent.status.refused
    stage.today = TODAY
    stage.run(10)
    assert not stage.agent.status.refused
    assert stage.tree() == expected(3)


def test_an_older_statement_reaches_a_fresh_server_only_below_its_floor(owned):
    stage, attacker = owned
    replay(attacker)
    new = fresh(stage)
    new.run(10)
    assert new.tree() == expected(1)  # signed, and nothing else is known
    assert new.agent.status.statement.seen.sequence == 1


def test_a_signature_that_follows_is_seen(owned):
    stage, attacker = owned
    path = signature_path(attacker.newest)
    signature = attacker.bucket.objects.pop(path)
    stage.run(10)
    assert stage.tree() == expected(2)
    attacker.bucket.objects[path] = signature
    stage.run(2 * POLL_S)
    assert stage.tree() == expected(3)


def test_what_came_without_a_key_is_removed_at_the_first_start_with_one(stage):
    stage.bucket.publish(1, 1)
    stage.run(10)
    assert stage.tree() == expected(1)
    stage.key = KEY
    stage.start()
    assert stage.tree() == {}
    assert not stage.agent.status.in_folder
    stage.bucket.key = KEY
    stage.bucket.publish(2, 2)
    stage.run(2 * POLL_S)
    assert stage.tree() == expected(2)


def test_another_key_does_not_stop_what_serves(owned):
    stage, attacker = owned
    stage.run(10)
    stage.key = "another"
    for _ in range(2):
        stage.start()
        stage.run(10)
        assert stage.tree() == expected(3)
        assert stage.agent.status.refused
    # The new key's owner may begin anew.
    attacker.bucket.key, attacker.bucket.history = "another", None
    attacker.bucket.publish(1, 1)
    stage.run(10)
    assert stage.tree() == expected(1)
