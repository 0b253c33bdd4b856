"""Which statements are accepted: signed, not older than one that was seen, of the same line."""

import hashlib
from datetime import datetime, timedelta

import pytest

from numl_formats.errors import StatementError
from numl_formats.published import Published, published_release, renewed
from numl_formats.statement import statement
from numl_formats.trust import Seen, check, signature_path
from tests.unit.numl_formats.test_statement import NOW, release

DAY = timedelta(days=1)


def sign(content: bytes, key: bytes = b"owner") -> bytes:
    """What stands for a signature."""
    return hashlib.sha256(key + content).hexdigest().encode()


def verify(content: bytes, signature: bytes) -> bool:
    return signature == sign(content)


def first() -> Published:
    return published_release(None, release(1), created=NOW, expires=NOW + DAY)


ONE = first()
TWO = renewed(ONE, created=NOW, expires=NOW + DAY)
ALSO_TWO = renewed(ONE, created=NOW, expires=NOW + 2 * DAY)


def checked(
    published: Published,
    seen: Seen | None,
    *,
    key: bytes = b"owner",
    now: datetime = NOW,
    least: int = 0,
) -> Seen:
    content = statement(published)
    found, remembered = check(
        content, sign(content, key), verify=verify, seen=seen, now=now, least=least
    )
    assert found == published
    return remembered


def test_what_is_signed_and_not_older_is_accepted_and_remembered():
    seen = checked(ONE, None)
    assert seen == Seen(ONE.line, 1, hashlib.sha256(statement(ONE)).hexdigest())
    assert checked(ONE, seen) == seen
    assert checked(TWO, seen).sequence == 2
    assert checked(TWO, None, least=2).sequence == 2


@pytest.mark.parametrize(
    ("published", "how", "reason", "words"),
    [
        (ONE, {"key": b"other"}, "signature", "is not signed with the key that is trusted"),
        (ONE, {}, "replay", "is an old one: statement 1, 2 was published"),
        (ALSO_TWO, {}, "replay", "is another statement 2 than the one before"),
        (TWO, {"least": 3}, "replay", "is an old one: statement 2, 3 was published"),
        (first(), {}, "line", "is of another line of releases"),
        (TWO, {"now": NOW + DAY}, "expired", "has expired: 2026-11-25T02:30:00Z"),
        # By a fresh server:
        (ONE, {"seen": None, "least": 2}, "replay", "an old one: statement 1, 2 was published"),
        (ONE, {"seen": None, "now": NOW + DAY}, "expired", "has expired"),
    ],
)
def test_anything_else_is_refused(published, how, reason, words):
    with pytest.raises(StatementError, match=words) as refused:
        checked(published, **{"seen": checked(TWO, None)} | how)
    assert refused.value.reason == reason


BEFORE_SEQUENCES = (
    b'{"format": 1, "serving": 1, "last": 1, "releases": [{"number": 1, "revision": "a",'
    b'"created": "2026-11-24T02:30:00Z", "models": {"nu": {"version": 1, "config": "",'
    b'"files": {}}}}]}'
)


@pytest.mark.parametrize(
    ("content", "signature", "reason", "words"),
    [
        (b"{", None, "signature", r"is not signed$"),
        (b"{", b"", "signature", "is not signed with the key"),
        (b"{", sign(b"{"), "format", "not JSON"),
        (BEFORE_SEQUENCES, sign(BEFORE_SEQUENCES), "replay", "is an old one: statement 0"),
    ],
    ids=["unsigned", "by nobody", "nothing said", "of a kit before sequences"],
)
def test_what_is_not_signed_is_not_even_read_and_not_all_that_is_signed_accepted(
    content, signature, reason, words
):
    with pytest.raises(StatementError, match=words) as refused:
        check(content, signature, verify=verify, seen=None, now=NOW)
    assert refused.value.reason == reason


def test_the_signature_is_named_by_what_it_signs():
    digest = hashlib.sha256(b"x").hexdigest()
    assert signature_path(b"x") == f"signatures/{digest}.sig"
