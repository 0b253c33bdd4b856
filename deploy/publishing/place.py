"""What a destination can do; each kind of destination is one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from deploy.artefacts.keys import Signer, SigningKey
from deploy.engines.resolved import Resolved
from deploy.host.console import Console
from deploy.host.errors import PublishError
from deploy.host.paths import DIST
from deploy.publishing.destination import Bucket, Destination


@dataclass(frozen=True)
class Order:
    """What is to be published.

    Attributes:
        resolved: The models, their weights and where they run, for a bucket.
        artefact: The ``.sif``, for a folder or ``oras://``; None: what ``build`` made.
        built: The folder that ``build`` wrote to.
        sandbox: Whether it is unpacked into a folder.
        sign: What to sign it with; None: it is published as it is.
        verify: Who must have signed it; None: anyone, or no one.
        dry_run: Whether only to report what would be done.
    """

    resolved: Resolved
    artefact: Path | None = None
    built: Path = DIST
    sandbox: bool = False
    sign: SigningKey | None = None
    verify: Signer | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class Outcome:
    """What was done, or would be.

    Attributes:
        lines: For people.
        facts: For programs.
    """

    changed: bool
    release: str
    lines: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A release that is there.

    Attributes:
        what: The models and their versions, or the file.
    """

    release: str
    created: str
    revision: str
    what: str
    bytes: int
    serving: bool


@dataclass(frozen=True)
class Listing:
    """The releases at a destination, oldest first, and what is wrong there."""

    entries: tuple[Entry, ...]
    problems: tuple[str, ...] = ()


def as_time(created: datetime) -> str:
    """Return a release's time as listed."""
    return created.strftime("%Y-%m-%d %H:%M UTC")


def rollback_target(releases: Sequence[int], serving: int | None, to: str | None) -> int:
    """Return the release to roll back to, given those that are there; ``to`` None: the one before.

    Raises:
        PublishError: If it is not there; with those that are.
    """
    if to is None:
        found = [number for number in releases if number < (serving or 0)][-1:]
    else:
        found = [number for number in releases if str(number) == to]
    if not found:
        none = f"release {serving} serves, and there is none before it"
        there = ", ".join(str(number) for number in releases if number != serving)
        cause = none if to is None else f"there is no release {to}"
        raise PublishError(cause, f"use --to with one of: {there}" if there else None)
    return found[0]


def nothing_published(where: object) -> PublishError:
    """Return the error for a destination with nothing to roll back to."""
    return PublishError(f"nothing is published in {where}", f"numlkit publish {where}")


class Place(ABC):
    """A destination that can be reached; what fails raises a :class:`PublishError`."""

    @abstractmethod
    def publish(self, order: Order, console: Console) -> Outcome:
        """Verify what was ordered, publish it, and have it serve."""

    @abstractmethod
    def listing(self, server: str | None) -> Listing:
        """Return what is there, what serves, and whether the server at a URL agrees."""

    @abstractmethod
    def rollback(self, to: str | None, *, dry_run: bool) -> Outcome:
        """Have an older release serve again; None: the one before."""

    @abstractmethod
    def prune(self, servers: tuple[str, ...], console: Console, *, dry_run: bool) -> Outcome:
        """Remove all releases but the one that serves and the one before it.

        Args:
            servers: URLs of servers that must answer with what serves, or nothing is removed.
        """


def place_at(destination: Destination) -> Place:
    # Each is imported when used: boto3 takes 0.3 s.
    if isinstance(destination, Bucket):
        from deploy.publishing.bucket import BucketPlace

        return BucketPlace(destination)
    if isinstance(destination, Path):
        from deploy.publishing.folder import FolderPlace

        return FolderPlace(destination)
    if destination.scheme == "oras":
        from deploy.publishing.sifs import SifPlace

        return SifPlace(destination)
    from deploy.publishing.images import ImagePlace

    return ImagePlace(destination)
