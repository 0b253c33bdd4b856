"""What should be in a place, whatever is done to it: of buckets and of folders."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis.stateful import RuleBasedStateMachine, invariant

from deploy.host.console import Console
from deploy.publishing.place import Listing, Look, Outcome, Place, Signing
from numl_formats.published import Published
from numl_formats.statement import NAME, read_published


class History(RuleBasedStateMachine):
    """A place, and what should be in it.

    Attributes:
        served: The numbers of what served, the newest last.
        contents: Each release's content.
        last: The highest number that a release had.
        servers: Which are asked before anything is removed.
    """

    signing, look, servers = Signing(), Look(check=True), ()

    def __init__(self) -> None:
        super().__init__()
        self.served: list[int] = []
        self.contents: dict[int, str] = {}
        self.last = 0

    @property
    def place(self) -> Place:
        raise NotImplementedError

    def file(self, name: str) -> bytes | None:
        """Return the content of a file there."""
        raise NotImplementedError

    def run_publish(self, content: str, signing: Signing) -> None:
        raise NotImplementedError

    def run_rollback(self, to: int | None, signing: Signing) -> None:
        self.place.rollback(str(to) if to is not None else None, signing, dry_run=False)

    def run_prune(self, signing: Signing) -> Outcome:
        return self.place.prune(self.servers, signing, Console("quiet"), dry_run=False)

    def acts(self, content: str, signing: Signing) -> dict[str, Callable[[], object]]:
        return {
            "publish": lambda: self.run_publish(content, signing),
            "rollback": lambda: self.run_rollback(None, signing),
            "prune": lambda: self.run_prune(signing),
        }

    def listing(self) -> Listing:
        return self.place.listing(self.look)

    def published(self) -> Published | None:
        content = self.file(NAME)
        return read_published(content) if content is not None else None

    def has_published(self, content: str) -> None:
        """Take over what a publish has done: a new release."""
        serving = self.published().serving
        assert serving > self.last
        self.last = serving
        self.served.append(serving)
        self.contents[serving] = content

    def has_pruned(self) -> None:
        self.served = self.served[-2:]
        self.contents = {number: self.contents[number] for number in self.served}

    def has_done(self, what: str, content: str, before: bytes | None) -> None:
        """Take over what an act has done that may have been killed, by the statement ``before``."""
        if self.file(NAME) == before:
            return
        if what == "publish":
            self.has_published(content)
        elif what == "rollback":
            self.served = after_rollback(self.served, None) or []
        else:
            self.has_pruned()

    @invariant()
    def releases_are_those_that_should_be(self) -> None:
        published = self.published()
        if not self.served:
            assert published is None
            return
        assert list(published.served) == self.served
        assert {release.number for release in published.releases} == set(self.contents)
        assert published.last == self.last


def after_rollback(served: list[int], to: int | None) -> list[int] | None:
    """Return what has served, the newest last, after a rollback; None: it is refused."""
    if to is None:
        return served[:-1] or None
    return served[: served.index(to) + 1] if to in served else [*served, to]
