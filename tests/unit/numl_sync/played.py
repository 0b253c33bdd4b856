"""A bucket, a server and a clock that are played here, since hours pass and faults come on order.

The real ones are in tests/integration/test_sync.py.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from numl_sync.agent import Agent
from numl_sync.errors import BucketError, ReleaseError
from numl_sync.mirror import Mirror
from numl_sync.templates import Templates
from numl_sync.trust import Trust

from numl_formats.card import Head
from numl_formats.cardfile import dump_card, read_card
from numl_formats.config import digest_in, render_config, with_digest
from numl_formats.published import File, Model, Published, Release, published_release, rolled_back
from numl_formats.statement import statement
from numl_formats.trust import signature_path

POLL_S = 3.0
MODELS = ("a", "b")
CARD = read_card(Path(__file__).parents[1] / "numl_formats" / "data" / "card-format-2.json")
CODE = b"the image's code"
TEMPLATE = 'backend: "python"\n'
PLACE = "s3://bucket"
# The owner's key, as far as the agent is concerned.
KEY = "fingerprint"
TODAY = datetime(2026, 11, 24, tzinfo=timezone.utc)


@cache
def card(version: int) -> bytes:
    head = Head("out", "out", "hit", version + 1)
    return dump_card(replace(CARD, heads=(head,), clustering=None)).encode()


def files(version: int) -> dict[str, bytes]:
    return {
        "weights.safetensors": b"w" * 1000 + bytes([version]),
        "model.json": card(version),
        "golden.npz": b"answers" + bytes([version]),
    }


def file_of(content: bytes) -> File:
    return File(hashlib.sha256(content).hexdigest(), len(content))


def release(number: int, version: int, names: Sequence[str] = MODELS) -> Release:
    described = {path: file_of(content) for path, content in files(version).items()}
    models = {name: Model(version, described) for name in names}
    return Release(number, TODAY, "0123abc", models)


@cache
def config(name: str, version: int, template: str = TEMPLATE) -> str:
    return with_digest(render_config(name, version, card(version), template))


def sign(content: bytes, key: str = KEY) -> bytes:
    return hashlib.sha256(key.encode() + content).hexdigest().encode()


def verify(content: bytes, signature: bytes, key: str) -> bool:
    return signature == sign(content, key)


def write_templates(
    folder: Path, template: str = TEMPLATE, names: Sequence[str] = (*MODELS, "c")
) -> None:
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.pbtxt").write_text(template)
        (folder / name / "model.py").write_bytes(CODE)


@dataclass
class PlayedBucket:
    """Attributes say what it holds, whether it is away, and after how many bytes it breaks off."""

    content: bytes | None = None
    objects: dict[str, bytes] = field(default_factory=dict)
    away: bool = False
    breaks_after: int | None = None
    asked: int = 0
    sent: int = 0
    history: Published | None = None
    expires: datetime | None = None
    key: str | None = None
    asked_for: list[str] = field(default_factory=list)

    def publish(self, number: int, version: int, *names: str) -> Release:
        """Put one version of all models, and serve it."""
        new = release(number, version, names or MODELS)
        for name in new.models:
            for path, content in files(version).items():
                self.objects[f"{name}/{version}/{path}"] = content
        self.serve(new)
        return new

    def serve(self, new: Release) -> None:
        """Serve a release whose files are there."""
        self.put(published_release(self.history, new, created=TODAY, expires=self.expires))

    def publish_each(self, *numbers: int) -> None:
        """Publish releases, each with versions of its own number."""
        for number in numbers:
            self.publish(number, number)

    def roll_back(self, to: int | None = None) -> None:
        """Have a release serve that is there."""
        self.put(rolled_back(self.history, to, created=TODAY, expires=self.expires))

    def put(self, published: Published) -> None:
        """Put a statement, and its signature if there is a key."""
        self.history = published
        self.content = statement(published)
        if self.key is not None:
            self.objects[signature_path(self.content)] = sign(self.content, self.key)

    def published(self, etag: str | None) -> tuple[str, bytes] | None:
        self.asked += 1
        if self.away or self.content is None:
            raise BucketError("s3://bucket: no connection")
        now = hashlib.md5(self.content).hexdigest()
        return None if etag == now else (now, self.content)

    def _ask_for(self, path: str) -> None:
        if self.away:
            raise BucketError("s3://bucket: no connection")
        self.asked_for.append(path)

    def signature(self, path: str) -> bytes | None:
        self._ask_for(path)
        return self.objects.get(path)

    def read(self, path: str, start: int, size: int) -> Iterator[bytes]:
        self._ask_for(path)
        if path not in self.objects:
            raise ReleaseError(f"{path} is not in the bucket")
        content = self.objects[path]
        if len(content) != size:
            raise ReleaseError(f"{path} has {len(content)} bytes, published.json says {size}")
        for place in range(start, size, 100):
            if self.breaks_after is not None and self.sent >= self.breaks_after:
                raise BucketError("s3://bucket: broken off")
            self.sent += len(content[place : place + 100])
            yield content[place : place + 100]


@dataclass
class PlayedServer:
    """Loads what its repository says, when asked, if it looks there and can load that."""

    repository: Path
    runs: bool = True
    looks: bool = True
    cannot_load: set[tuple[str, int]] = field(default_factory=set)
    cannot_configure: set[str] = field(default_factory=set)
    asked: int = 0
    has: dict[str, str] = field(default_factory=dict)

    def is_ready(self, model: str, version: int) -> bool | None:
        self.asked += 1
        self._look()
        if not self.runs:
            return None
        loads = (self.repository / model / str(version) / "weights.safetensors").exists()
        name_and_version = config(model, version, "").splitlines()[:2]
        named = loads and self.has.get(model, "").splitlines()[:2] == name_and_version
        return named and (model, version) not in self.cannot_load

    def loaded(self, model: str) -> str | None:
        self._look()
        return digest_in(self.has[model]) if self.runs and model in self.has else None

    def _look(self) -> None:
        if not self.runs:
            self.has.clear()
        elif self.looks:
            there = {path.parent.name: path for path in self.repository.glob("*/config.pbtxt")}
            kept = {name: self.has[name] for name in self.cannot_configure & self.has.keys()}
            self.has = {name: path.read_text() for name, path in there.items()} | kept


@dataclass
class Stage:
    """An agent in its folder, with everything around it played."""

    folder: Path
    bucket: PlayedBucket = field(default_factory=PlayedBucket)
    said: list[str] = field(default_factory=list)
    now: float = 1000.0
    wrong: set[str] = field(default_factory=set)
    checked: list[str] = field(default_factory=list)
    key: str = ""
    least: int = 0
    today: datetime = TODAY
    agent: Agent = field(init=False)
    server: PlayedServer = field(init=False)

    def __post_init__(self) -> None:
        self.server = PlayedServer(self.folder / "repository")
        self.templates = self.folder.with_name("templates")
        write_templates(self.templates)
        self.start()

    def start(self) -> None:
        """Start the agent, as after its death."""
        if hasattr(self, "agent"):
            self.agent._mirror._lock.close()  # as the end of a process does
        self.said.clear()
        templates = Templates(self.templates)
        self.agent = Agent(
            self.bucket,
            Mirror(self.folder, templates),
            self.server,
            trust=Trust(
                PLACE, partial(verify, key=self.key) if self.key else None, self.key, self.least
            ),
            templates=templates,
            check=self._check,
            say=self.said.append,
            poll_s=POLL_S,
            clock=lambda: self.now,
            today=lambda: self.today + timedelta(seconds=self.now),
        )

    @property
    def refusals(self) -> set[str]:
        """For what reasons statements were refused."""
        return {why for why, count in self.agent.status.refused_statements.items() if count}

    def run(self, seconds: float) -> None:
        """Let the agent work as its command does."""
        until = self.now + seconds
        while self.now < until:
            self.now += max(self.agent.step(), 0.01)

    def wait(self, seconds: float) -> None:
        """Let time pass in which nothing happens: the agent works only at its ends."""
        until = self.now + seconds
        self.run(10)
        self.now = until - 10
        self.run(10)

    def tree(self) -> dict[str, bytes]:
        """All that the server can see."""
        top = self.folder / "repository"
        return {
            path.relative_to(top).as_posix(): path.read_bytes()
            for path in sorted(top.rglob("*"))
            if path.is_file()
        }

    def _check(self, versions: Sequence[Path], _meanwhile: Callable[[], None]) -> None:
        self.checked += [version.name for version in versions]
        for version in versions:
            if version.name in self.wrong:
                raise ReleaseError(f"{version.name} does not give its golden answer here: no")


class KilledError(BaseException):
    """The end of the process, at a place that a test chooses."""


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """End the agent instead of its change number ``step`` to the disk."""
    left = step

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def run(*words: Any, **more: Any) -> Any:
            nonlocal left
            if left == 0:
                raise KilledError
            left -= 1
            return change(*words, **more)

        return run

    with pytest.MonkeyPatch.context() as patch:
        for name in ("rename", "replace", "unlink", "mkdir", "write_text", "write_bytes", "touch"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        for owner, name in (
            *((shutil, "copyfile"), (shutil, "rmtree"), (os, "utime")),
            (PlayedBucket, "read"),  # each file that is downloaded
        ):
            patch.setattr(owner, name, counted(getattr(owner, name)))
        yield


def expected(version: int, *names: str) -> dict[str, bytes]:
    """Return what `Stage.tree` is when one version of all models serves."""
    return {
        path: content
        for name in names or ("a", "b")
        for path, content in {
            f"{name}/config.pbtxt": config(name, version).encode(),
            **{f"{name}/{version}/{path}": content for path, content in files(version).items()},
            f"{name}/{version}/model.py": CODE,
            f"{name}/{version}/__pycache__": b"",
        }.items()
    }
