"""A folder's history: whatever is done, killed or damaged, what serves is what should, whole.

Each command runs in a process of its own, which may be killed at any change that it makes.
"""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from deploy.host.errors import PublishError
from deploy.publishing.folder import FolderPlace
from deploy.publishing.place import Signing
from numl_formats.statement import NAME
from tests.unit.deploy.publishing.history import History, after_rollback
from tests.unit.deploy.publishing.test_folder import killed_at, publish_files, small_files

CONTENTS = ("a", "b", "c")
PEOPLES = ("notes.txt", "2/thesis.txt", "current.old/numl.sif")


@pytest.fixture(scope="module", autouse=True)
def files():
    with pytest.MonkeyPatch.context() as patch:
        small_files(patch)
        yield


class Histories(History):
    """A folder, and what should be in it."""

    @initialize()
    def start(self) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="numlkit-test-"))
        self.root = self.scratch / "place"
        for name in PEOPLES:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text("mine")
        self.damaged: set[int] = set()

    def teardown(self) -> None:
        if hasattr(self, "scratch"):
            shutil.rmtree(self.scratch)

    @property
    def place(self) -> FolderPlace:
        return FolderPlace(self.root)

    def file(self, name: str) -> bytes | None:
        path = self.root / name
        return path.read_bytes() if path.exists() else None

    def run_publish(self, content: str, signing: Signing) -> None:
        publish_files(self.scratch / "dist", self.root, content, sign=signing.key)

    def has_published(self, content: str) -> None:
        """What a publish does: it goes back to one that is there, or brings a new one."""
        there = [n for n, each in self.contents.items() if each == content]
        whole = [number for number in there if number not in self.damaged]
        if whole:
            again = max(whole)
            self.served = [*(number for number in self.served if number != again), again]
        else:
            super().has_published(content)

    @rule(content=st.sampled_from(CONTENTS))
    def publish(self, content: str) -> None:
        self.run_publish(content, self.signing)
        self.has_published(content)
        self.linked()

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        to = data.draw(st.none() | st.sampled_from(list(self.contents)))
        half = to is None and self.is_half_back()
        served = self.served if half else after_rollback(self.served, to)
        if served is None or served[-1] in self.damaged:
            with pytest.raises(PublishError):
                self.run_rollback(to, self.signing)
            return
        self.run_rollback(to, self.signing)
        self.served = served
        self.linked()

    def is_half_back(self) -> bool:
        """Return whether a rollback was killed before it moved the link, and is to be finished."""
        link = self.root / "current"
        linked = link.readlink().name if link.is_symlink() else ""
        return linked in map(str, self.contents) and int(linked) not in self.served

    @precondition(lambda self: self.served)
    @rule()
    def prune(self) -> None:
        self.run_prune(self.signing)
        self.has_pruned()
        ours = {path.parent.name for path in self.root.glob("[0-9]*/.numlkit")}
        assert ours == {str(number) for number in self.contents}

    @rule(
        what=st.sampled_from(["publish", "rollback", "prune"]),
        content=st.sampled_from(CONTENTS),
        step=st.integers(0, 25),
    )
    def kill(self, what: str, content: str, step: int) -> None:
        before, target = self.file(NAME), after_rollback(self.served, None)
        if what == "rollback" and (target is None or target[-1] in self.damaged):
            return
        killed_at(step, self.root, self.acts(content, self.signing)[what])
        self.has_done(what, content, before)

    @precondition(lambda self: self.served)
    @rule(data=st.data(), lose=st.booleans())
    def damage(self, data: st.DataObject, lose: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.contents)))
        path = self.root / str(number) / "numl.sif"
        if lose:
            path.unlink(missing_ok=True)
        elif path.exists():
            path.write_text("!")
        self.damaged.add(number)

    def linked(self) -> None:
        """What serves is what a node starts."""
        assert (self.root / "current").readlink() == Path(str(self.served[-1]))
        if self.served[-1] not in self.damaged:
            content = (self.root / "current" / "numl.sif").read_text()
            assert content == self.contents[self.served[-1]]
        names = {path.name for path in self.root.iterdir()}
        assert not {name for name in names if name.startswith(".")}

    @invariant()
    def what_serves_is_what_should(self) -> None:
        for number, content in self.contents.items():
            if number not in self.damaged:
                assert (self.root / str(number) / "numl.sif").read_text() == content

    @invariant()
    def a_check_finds_exactly_what_is_damaged(self) -> None:
        found = {int(entry.release) for entry in self.listing().entries if entry.damaged}
        assert found == self.damaged & set(self.contents)

    @invariant()
    def what_people_put_there_stays(self) -> None:
        assert {(self.root / name).read_text() for name in PEOPLES} == {"mine"}


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
