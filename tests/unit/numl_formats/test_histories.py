"""Histories of a place, held against a plain model: what serves, and what is kept."""

import time
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from numl_formats.errors import FormatError
from numl_formats.published import Published, pruned, published_release, renewed, rolled_back
from numl_formats.statement import read_published, statement
from tests.unit.numl_formats.test_statement import release

BEGIN = datetime(2026, 11, 24, tzinfo=timezone.utc)


class History(RuleBasedStateMachine):
    """Beside the statement, a plain list of what served well, and all that was kept."""

    @initialize()
    def first(self) -> None:
        self.steps, self.well, self.kept, self.highest = 0, [1], {1}, 1
        self.published = published_release(None, release(1), **self.times())
        self.line = self.published.line

    def times(self) -> dict[str, datetime]:
        self.steps += 1
        now = BEGIN + timedelta(seconds=self.steps)
        return {"created": now, "expires": now + timedelta(days=1)}

    @rule(skipped=st.integers(0, 2))
    def publish(self, skipped: int) -> None:
        self.highest += 1 + skipped  # numbers that aborted publications have taken
        new = release(self.highest)
        self.published = published_release(self.published, new, **self.times())
        self.well.append(self.highest)
        self.kept.add(self.highest)

    @precondition(lambda self: len(self.well) > 1)
    @rule()
    def roll_back(self) -> None:
        self.published = rolled_back(self.published, **self.times())
        self.well.pop()

    @rule(data=st.data())
    def roll_back_to(self, data: st.DataObject) -> None:
        to = data.draw(st.sampled_from(sorted(self.kept)))
        self.published = rolled_back(self.published, to, **self.times())
        while to in self.well and self.well[-1] != to:
            self.well.pop()
        if to not in self.well:
            self.well.append(to)

    @rule()
    def prune(self) -> None:
        self.published = pruned(self.published, **self.times())
        del self.well[:-2]
        self.kept = set(self.well)

    @rule()
    def renew(self) -> None:
        before = self.published
        self.published = renewed(before, **self.times())
        assert self.published.served == before.served

    @precondition(lambda self: len(self.well) == 1)
    @rule()
    def roll_back_to_nothing(self) -> None:
        with pytest.raises(FormatError, match=r"serves, and none served before it$"):
            rolled_back(self.published, created=BEGIN, expires=None)

    @invariant()
    def what_serves_is_what_the_model_says(self) -> None:
        published = self.published
        assert published.current == release(self.well[-1])
        assert list(published.served) == self.well
        assert {each.number for each in published.releases} == self.kept
        assert published.last == self.highest

    @invariant()
    def fallbacks_are_what_served_before_and_then_the_newest(self) -> None:
        others = sorted(self.kept - set(self.well), reverse=True)
        numbers = [each.number for each in self.published.fallbacks]
        assert numbers == [*reversed(self.well[:-1]), *others]

    @invariant()
    def it_is_the_next_statement_of_its_line_and_reads_as_it_was_written(self) -> None:
        assert (self.published.sequence, self.published.line) == (self.steps, self.line)
        assert self.published.created == BEGIN + timedelta(seconds=self.steps)
        assert read_published(statement(self.published)) == self.published


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def publications(*numbers: int) -> Published:
    published = None
    for number in numbers:
        published = published_release(published, release(number), created=BEGIN, expires=None)
    return published


def test_what_is_not_there_is_refused():
    with pytest.raises(FormatError, match=r"^there is no release 4$"):
        rolled_back(publications(1, 2), 4, created=BEGIN, expires=None)


def test_a_number_is_given_once():
    with pytest.raises(ValueError, match="2 is not a new number"):
        published_release(publications(1, 2), release(2), created=BEGIN, expires=None)


def test_two_places_have_different_lines():
    assert publications(1).line != publications(1).line


def test_what_a_fresh_server_may_serve_of_a_long_history_is_found_as_fast_as_it_is_read():
    def seconds(count: int) -> float:
        numbers = range(1, count + 1)
        releases = tuple(map(release, numbers))
        long = Published("", 0, BEGIN, None, tuple(numbers), count, releases)
        started = time.process_time()
        assert len(long.fallbacks) == count - 1
        return time.process_time() - started

    seconds(500)
    assert seconds(10_000) < 100 * seconds(500)  # if each were looked for among all: 400
