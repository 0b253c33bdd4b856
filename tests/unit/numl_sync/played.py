"""A bucket, a server and a clock that are played here, since hours pass and faults come on order.

The real ones are in tests/integration/test_sync.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numl_sync.agent import Agent
from numl_sync.errors import BucketError, ReleaseError
from numl_sync.mirror import Mirror

POLL_S = 3.0
CONFIG = 'name: "{}"\nversion_policy {{\n  specific {{\n    versions: {}\n  }}\n}}\n'
Files = Mapping[str, bytes]


def files(version: int) -> dict[str, bytes]:
    return {"weights": b"w" * 1000 + bytes([version]), "model.py": b"code", "sub/data": b""}


def release(number: int, models: Mapping[str, tuple[int, Files]]) -> dict[str, Any]:
    """Return an entry of published.json."""
    said = {
        name: {
            "version": version,
            "config": CONFIG.format(name, version),
            "files": {
                path: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
                for path, content in content_of.items()
            },
        }
        for name, (version, content_of) in models.items()
    }
    return {
        "number": number,
        "created": "2026-11-23T00:00:00Z",
        "revision": "0123abc",
        "models": said,
    }


def document(serving: int, *releases: Mapping[str, Any]) -> dict[str, Any]:
    return {"format": 1, "serving": serving, "releases": list(releases)}


@dataclass
class PlayedBucket:
    """Attributes say what it holds, whether it is away, and after how many bytes it breaks off."""

    content: bytes | None = None
    objects: dict[str, bytes] = field(default_factory=dict)
    away: bool = False
    breaks_after: int | None = None
    asked: int = 0
    sent: int = 0
    releases: list[dict[str, Any]] = field(default_factory=list)

    def publish(self, number: int, version: int, *names: str) -> dict[str, Any]:
        """Put one version of all models, and serve it."""
        models = {name: (version, files(version)) for name in names or ("a", "b")}
        for name in models:
            for path, content in files(version).items():
                self.objects[f"{name}/{version}/{path}"] = content
        self.releases = [each for each in self.releases if each["number"] != number]
        self.releases.append(release(number, models))
        said = document(number, *self.releases)
        self.content = json.dumps(said).encode()
        return said

    def published(self, etag: str | None) -> tuple[str, bytes] | None:
        self.asked += 1
        if self.away or self.content is None:
            raise BucketError("s3://bucket: no connection")
        now = hashlib.md5(self.content).hexdigest()
        return None if etag == now else (now, self.content)

    def read(self, path: str, start: int, size: int) -> Iterator[bytes]:
        if self.away:
            raise BucketError("s3://bucket: no connection")
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
    """Loads what its repository says, when asked, unless a version cannot be loaded."""

    repository: Path
    runs: bool = True
    cannot_load: set[tuple[str, int]] = field(default_factory=set)
    cannot_configure: set[str] = field(default_factory=set)
    asked: int = 0

    def is_ready(self, model: str, version: int) -> bool | None:
        self.asked += 1
        if not self.runs:
            return None
        config = self.repository / model / "config.pbtxt"
        there = (self.repository / model / str(version) / "weights").exists()
        named = there and config.read_text().startswith(CONFIG.format(model, version))
        return named and (model, version) not in self.cannot_load

    def config(self, model: str) -> bytes | None:
        if not self.runs or model in self.cannot_configure:
            return b"before" if self.runs else None
        return (self.repository / model / "config.pbtxt").read_bytes()


@dataclass
class Stage:
    """An agent in its folder, with everything around it played."""

    folder: Path
    bucket: PlayedBucket = field(default_factory=PlayedBucket)
    said: list[str] = field(default_factory=list)
    now: float = 1000.0
    wrong: set[str] = field(default_factory=set)
    checked: list[str] = field(default_factory=list)
    agent: Agent = field(init=False)
    server: PlayedServer = field(init=False)

    def __post_init__(self) -> None:
        self.server = PlayedServer(self.folder / "repository")
        self.start()

    def start(self) -> None:
        """Start the agent, as after its death."""
        if hasattr(self, "agent"):
            self.agent._mirror._lock.close()  # as the end of a process does
        self.said.clear()
        self.agent = Agent(
            self.bucket,
            Mirror(self.folder),
            self.server,
            check=self._check,
            say=self.said.append,
            poll_s=POLL_S,
            clock=lambda: self.now,
        )

    def run(self, seconds: float) -> None:
        """Let the agent work as its command does."""
        until = self.now + seconds
        while self.now < until:
            self.now += max(self.agent.step(), 0.01)

    def tree(self) -> dict[str, bytes]:
        """All that the server can see."""
        top = self.folder / "repository"
        return {
            path.relative_to(top).as_posix(): path.read_bytes()
            for path in sorted(top.rglob("*"))
            if path.is_file()
        }

    def _check(self, versions: Sequence[Path]) -> None:
        self.checked += [version.name for version in versions]
        for version in versions:
            if version.name in self.wrong:
                raise ReleaseError(f"{version.name} does not give its golden answer here: no")


def expected(version: int, *names: str) -> dict[str, bytes]:
    """Return what `Stage.tree` is when one version of all models serves."""
    return {
        path: content
        for name in names or ("a", "b")
        for path, content in {
            f"{name}/config.pbtxt": CONFIG.format(name, version).encode(),
            **{f"{name}/{version}/{path}": content for path, content in files(version).items()},
            f"{name}/{version}/__pycache__": b"",
        }.items()
    }
