"""What a watch over a place says of it."""

import errno
import os

import pytest

from deploy.host.errors import DamagedError, PublishError, SignatureError, UncheckedError
from deploy.publishing import watch
from deploy.publishing.place import Entry, Listing
from deploy.publishing.watch import PlaceWatch

ENTRY = Entry(release="1", what="", bytes=1, serving=True)
RIGHT, DAMAGED = Listing((ENTRY,)), Listing((ENTRY,), ("release 1 is damaged",))
STALE = OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/place/1")
AWAY, REPLAYED = PublishError("no route"), SignatureError("an old one")
UNREADABLE = DamagedError("published.json cannot be used")


@pytest.fixture
def looks(monkeypatch):
    """A watch, given what each look finds; what it says goes to a list."""
    monkeypatch.setattr(watch, "_SETTLED_S", 0)

    def start(*found: Listing | Exception) -> tuple[PlaceWatch, list[str]]:
        left, said = iter(found), []

        def look() -> Listing:
            each = next(left)
            if isinstance(each, Exception):
                raise each
            return each

        return PlaceWatch("here", look, 0, lambda text: said.append(text.partition(" ")[2])), said

    return start


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (DAMAGED, "release 1 is damaged"),
        (REPLAYED, "an old one"),
        (UNREADABLE, "published.json cannot be used"),
        (Listing(()), "nothing is published"),
    ],
)
def test_what_is_damaged_or_refused_is_told_once_and_what_is_mended_is_right_again(
    looks, wrong, text
):
    watched, said = looks(RIGHT, wrong, wrong, wrong, RIGHT)
    refused = []
    for _ in range(4):
        watched.check()
        refused.append('numl_published_refused{place="here"} 1.0' in watched.metrics())
    assert refused == [False, True, True, False]
    assert said == ["here: right", f"here: {text}", "here: right"]


def test_what_is_wrong_for_a_moment_only_is_a_publish_at_work(looks):
    watched, said = looks(RIGHT, DAMAGED, RIGHT)
    for _ in range(2):
        watched.check()
    assert said == ["here: right"]


@pytest.mark.parametrize(
    ("away", "why"),
    [
        (AWAY, "no route"),
        (STALE, "/place/1: Stale file handle"),
        (UncheckedError("cannot check the signature"), "cannot check the signature"),
    ],
)
def test_a_place_that_is_away_is_not_damaged_and_was_not_checked(looks, away, why):
    watched, said = looks(away)
    before = watched.checked
    watched.check()
    assert said == [f"here: cannot be checked: {why}"]
    assert "refused" not in watched.metrics()
    assert watched.checked == before
