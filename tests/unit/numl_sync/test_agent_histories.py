"""An agent's history: whatever is published, attacked, killed or upgraded, what serves is signed.

The model beside it knows what the owner has signed, and which of that is whole and answers right.
"""

import itertools
import json
import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import played
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from played import (
    CODE,
    KEY,
    MODELS,
    POLL_S,
    TEMPLATE,
    KilledError,
    Stage,
    config,
    expected,
    files,
    killed_at,
    sign,
)

from numl_formats.published import Published, pruned, renewed
from numl_formats.statement import statement
from numl_formats.trust import signature_path

SETTLED_S = 10 * POLL_S
SETTINGS = "instance_group { count: 3 }\n"
WEIGHTS = "weights.safetensors"


class Histories(RuleBasedStateMachine):
    """A bucket whose owner signs, somebody who may write there, and an agent with the key."""

    @initialize()
    def begin(self) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="numlkit-test-"))
        self.stage = Stage(self.scratch / "mirror", key=KEY)
        self.bucket = self.stage.bucket
        self.bucket.key = KEY
        self.numbers = itertools.count(1)
        self.template = TEMPLATE
        self.signed: dict[bytes, Published] = {}
        self.good: set[int] = set()
        # What the agent has accepted, and what must serve.
        self.sequence, self.serving = 0, 0

    def teardown(self) -> None:
        if hasattr(self, "stage"):
            self.stage.agent._mirror._lock.close()
            shutil.rmtree(self.scratch)

    def note(self) -> None:
        """Note what the owner has signed."""
        self.signed[self.bucket.content] = self.bucket.history

    @rule(kind=st.sampled_from(["good", "good", "wrong", "damaged", "missing"]))
    def publish(self, kind: str) -> None:
        number = next(self.numbers)
        self.bucket.publish(number, number)
        self.note()
        if kind == "good":
            self.good.add(number)
        elif kind == "wrong":
            self.stage.wrong.add(f"a-{number}")
        elif kind == "damaged":
            # In b it would not be read: its files are a's, and a file is downloaded once.
            self.bucket.objects[f"a/{number}/{WEIGHTS}"] = b"!" * 1001
        else:
            del self.bucket.objects[f"a/{number}/model.json"]

    @precondition(lambda self: self.bucket.history is not None)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        published = self.bucket.history
        numbers = [each.number for each in published.releases]
        before = [None] if len(published.served) > 1 else []
        self.bucket.roll_back(data.draw(st.sampled_from([*before, *numbers])))
        self.note()

    @precondition(lambda self: self.bucket.history is not None)
    @rule()
    def prune(self) -> None:
        kept = pruned(self.bucket.history, created=played.TODAY, expires=None)
        self.bucket.put(kept)
        self.note()
        numbers = {each.number for each in kept.releases}
        for key in list(self.bucket.objects):
            version = key.split("/")[1]
            if version.isdecimal() and int(version) not in numbers:
                del self.bucket.objects[key]
                self.good.discard(int(version))

    @precondition(lambda self: self.bucket.history is not None)
    @rule()
    def sign_again(self) -> None:
        """What an owner does who finds the statement changed."""
        self.bucket.put(renewed(self.bucket.history, created=played.TODAY, expires=None))
        self.note()

    @precondition(lambda self: self.signed)
    @rule(data=st.data())
    def put_an_older_statement_back(self, data: st.DataObject) -> None:
        content = data.draw(st.sampled_from(list(self.signed)))
        self.bucket.objects[signature_path(content)] = sign(content)
        self.bucket.content = content

    @precondition(lambda self: self.signed)
    @rule(
        how=st.sampled_from(["serving", "sequence", "key", "line", "no signature"]),
        number=st.integers(1, 9),
    )
    def forge(self, how: str, number: int) -> None:
        own = statement(self.bucket.history)
        said = json.loads(own)
        signature: bytes | None = self.bucket.objects.get(signature_path(own))
        if how == "serving":
            said |= {"serving": number, "served": [number], "sequence": 99}
        elif how == "sequence":
            said |= {"sequence": 99}
        content = json.dumps(said).encode()
        if how == "key":
            signature = sign(content, "another")
        elif how == "line":  # which the owner has signed, for another place
            content = statement(replace(self.bucket.history, line="0" * 16, sequence=99))
            signature = sign(content) if self.sequence else None
        elif how == "no signature":
            signature = None
        self.bucket.objects.pop(signature_path(content), None)
        if signature is not None:
            self.bucket.objects[signature_path(content)] = signature
        self.bucket.content = content

    @rule()
    def lose_or_find_the_bucket(self) -> None:
        self.bucket.away = not self.bucket.away

    @rule()
    def run(self) -> None:
        self.stage.run(SETTLED_S)
        self.settled()

    @rule()
    def restart(self) -> None:
        self.stage.start()
        self.run()

    @rule(step=st.integers(0, 60), is_new=st.booleans())
    def kill(self, step: int, is_new: bool) -> None:
        if is_new:  # else there is seldom a change to be killed at
            self.publish("good")
        with killed_at(step), suppress(KilledError):
            self.stage.run(SETTLED_S)
        self.never_anything_else()
        self.restart()

    @rule()
    def upgrade_the_image(self) -> None:
        self.template = TEMPLATE if self.template != TEMPLATE else TEMPLATE + SETTINGS
        played.write_templates(self.stage.templates, self.template)
        self.restart()

    @precondition(lambda self: self.serving in self.good and not self.bucket.away)
    @rule(path=st.sampled_from([WEIGHTS, "model.json", "model.py"]), lose=st.booleans())
    def change_the_mirror(self, path: str, lose: bool) -> None:
        target = self.stage.folder / "repository" / "a" / str(self.serving) / path
        if lose:
            target.unlink()
        else:
            target.write_bytes(b"!" * target.stat().st_size)
        self.restart()

    def accept(self) -> None:
        """Have the model accept what is in the bucket, as an agent must."""
        content = self.bucket.content
        published = self.signed.get(content) if content is not None else None
        if self.bucket.away or published is None or published.sequence < self.sequence:
            return
        if signature_path(content) not in self.bucket.objects:
            return
        self.sequence = published.sequence
        fallbacks = published.fallbacks if not self.serving else ()
        for release in (published.current, *fallbacks):
            if release.number == self.serving or release.number in self.good:
                self.serving = release.number
                return

    def settled(self) -> None:
        self.accept()
        tree = self.stage.tree()
        assert tree == (self.tree_of(self.serving) if self.serving else {})
        assert self.stage.agent.status.release == self.serving
        accepted = self.stage.agent.status.statement
        assert (accepted.seen.sequence if accepted is not None else 0) == self.sequence

    def tree_of(self, version: int) -> dict[str, bytes]:
        configs = {f"{m}/config.pbtxt": config(m, version, self.template).encode() for m in MODELS}
        return expected(version) | configs

    @invariant()
    def never_anything_else(self) -> None:
        """What a server sees is of one image and of what was signed, whole, and right."""
        for path, content in self.stage.tree().items():
            name, *rest = path.split("/")
            assert name in MODELS
            if rest == ["config.pbtxt"]:
                continue
            version, file = rest
            assert f"{name}-{version}" not in self.stage.wrong
            assert content == {**files(int(version)), "model.py": CODE, "__pycache__": b""}[file]


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
