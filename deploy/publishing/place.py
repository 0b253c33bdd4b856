"""What a destination can do; each kind of destination is one file, which `places` chooses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from deploy.artefacts.keys import Signer
from deploy.deployment.deployment import RELEASE_PATTERN
from deploy.engines.resolved import Resolved
from deploy.host.console import Console, as_time
from deploy.host.errors import PublishError
from deploy.host.paths import DIST
from numl_formats.published import Published


@dataclass(frozen=True)
class Order:
    """What is to be published.

    Attributes:
        resolved: The models, their weights and where they run, for a bucket.
        artefact: The ``.sif``, for a folder or ``oras://``; None: what ``build`` made.
        built: The folder that ``build`` wrote to.
        sandbox: Whether it is unpacked into a folder.
        sign: A private key to sign it with; None: it is published as it is.
        verify: Who must have signed it; None: anyone, or no one.
        valid_for: How long the signed statement of a bucket or folder is accepted; None: for good.
        with_code: Whether a bucket also gets what a Triton that polls it by itself runs.
    """

    resolved: Resolved
    artefact: Path | None = None
    built: Path = DIST
    sandbox: bool = False
    sign: Path | None = None
    verify: Signer | None = None
    valid_for: timedelta | None = None
    with_code: bool = False
    dry_run: bool = False

    @property
    def triton(self) -> str:
        """The release of Triton after which ``build`` has named its artefacts."""
        named = self.resolved.deployment.triton
        # Of a release nothing has to be fetched to know its name.
        return named if RELEASE_PATTERN.fullmatch(named) else self.resolved.release.release

    @property
    def signing(self) -> Signing:
        return Signing(self.sign, self.valid_for)


@dataclass(frozen=True)
class Signing:
    """How a change to a place is signed.

    Attributes:
        key: A private key; None: it is not.
        valid_for: How long it is accepted; None: until something newer is there.
    """

    key: Path | None = None
    valid_for: timedelta | None = None


@dataclass(frozen=True)
class Look:
    """What is asked about a place.

    Attributes:
        server: URL of a server that must serve what the place says.
        verify: Who must have signed it.
        check: Whether to read every file.
    """

    server: str | None = None
    verify: Signer | None = None
    check: bool = False


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


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A release that is there.

    Attributes:
        what: The models and their versions, or the file.
        damaged: Whether some of its files are missing or differ from what was published.
    """

    release: str
    created: str = ""
    revision: str = ""
    what: str
    bytes: int
    serving: bool = False
    damaged: bool = False


@dataclass(frozen=True)
class Listing:
    """The releases at a destination, oldest first, and what is wrong there.

    Attributes:
        notes: What else there is to know.
        sequence: Number of the statement; None: a registry has none, or nothing is published.
    """

    entries: tuple[Entry, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sequence: int | None = None


def entries_of(published: Published, damaged: Collection[int]) -> tuple[Entry, ...]:
    """Return the releases of a statement, given the numbers of those that are damaged."""
    return tuple(
        Entry(
            release=str(each.number),
            created=as_time(each.created),
            revision=each.revision,
            what=each.summary + (f", sha256:{each.image.sha256}" if each.image else ""),
            bytes=each.bytes,
            serving=each.number == published.serving,
            damaged=each.number in damaged,
        )
        for each in published.releases
    )


def nothing_published(where: object, signing: Signing) -> PublishError:
    """Return the error for a destination with nothing to roll back to."""
    if signing.key is not None:  # what is there, if anything, is unsigned
        remedy = f"numlkit publish {where} --sign {signing.key}"
        return PublishError(f"nothing signed is published in {where}", remedy)
    return PublishError(f"nothing is published in {where}", f"numlkit publish {where}")


class Place(ABC):
    """A destination that can be reached; what fails raises a :class:`PublishError`."""

    @abstractmethod
    def publish(self, order: Order, console: Console) -> Outcome:
        """Verify what was ordered, publish it, and have it serve."""

    @abstractmethod
    def listing(self, look: Look) -> Listing:
        """Return what is there, what serves, and what is wrong with it."""

    @abstractmethod
    def rollback(self, to: str | None, signing: Signing, *, dry_run: bool) -> Outcome:
        """Have a release serve again; None: the one that served before."""

    @abstractmethod
    def check_prune(self, servers: tuple[str, ...]) -> None:
        """Raise a :class:`DeploymentError` if :meth:`prune` can never be asked for like this."""

    @abstractmethod
    def prune(
        self, servers: tuple[str, ...], signing: Signing, console: Console, *, dry_run: bool
    ) -> Outcome:
        """Remove all releases but the one that serves and the one that served before it.

        Args:
            servers: URLs of servers that must answer with what serves, or nothing is removed.
        """
