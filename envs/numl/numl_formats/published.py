"""The releases of a place, which of them serves, and what served before, as typed data.

`numl_formats.statement` reads and writes it; whoever changes a place uses `published_release`,
`rolled_back`, `pruned` or `renewed`: each returns the next statement.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from numl_formats.errors import FormatError

IMAGE_NAMES = {"sif": "numl.sif", "sandbox": "numl"}
"""An image in its release's folder, by its form."""


@dataclass(frozen=True, slots=True)
class File:
    """What a file holds.

    Attributes:
        sha256: Its digest, in hexadecimal.
        bytes: Its size.
    """

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Model:
    """A model of a release.

    Attributes:
        version: The folder of its files, below the model's: written once, never changed.
        files: Its data, by name: some of `DATA_FILES`.
        code: What a Triton that polls the bucket by itself runs: ``config.pbtxt`` in the model's
            folder, all other files by their paths in the version's. Nothing of the kit uses it.
    """

    version: int
    files: Mapping[str, File]
    code: Mapping[str, File] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in (*self.files.values(), *self.code.values()))


@dataclass(frozen=True, slots=True)
class Image:
    """The image of a release in a folder.

    Attributes:
        form: A ``.sif``, or a sandbox that one was unpacked into.
        source: The name of the ``.sif`` that was published.
        sha256: Digest of that ``.sif``.
        bytes: Size of that ``.sif``.
    """

    form: Literal["sif", "sandbox"]
    source: str
    sha256: str
    bytes: int

    @property
    def name(self) -> str:
        """Its file, or folder, in the release's folder."""
        return IMAGE_NAMES[self.form]


@dataclass(frozen=True, slots=True)
class Release:
    """What serves together: models, or an image.

    Attributes:
        number: Counts publications; a version that it brings has the same number.
        created: When it was published.
        revision: The commit of the kit that it was published from.
    """

    number: int
    created: datetime
    revision: str
    models: Mapping[str, Model] = field(default_factory=dict)
    image: Image | None = None

    @property
    def versions(self) -> dict[str, int]:
        return {name: model.version for name, model in self.models.items()}

    @property
    def bytes(self) -> int:
        return sum(model.bytes for model in self.models.values()) + (
            self.image.bytes if self.image is not None else 0
        )

    @property
    def summary(self) -> str:
        """Its models and their versions, or its image, in a line."""
        if self.image is not None:
            return f"{self.image.form} of {self.image.source}"
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())


@dataclass(frozen=True, slots=True)
class Published:
    """A statement.

    Attributes:
        line: Identifies the place's line of releases; empty: written by a kit before format 2.
        sequence: Counts statements; 0: written by a kit before format 2.
        created: When it was made.
        expires: When it is no longer accepted; None: never.
        served: Releases that serve or served well, oldest first; the last one serves.
        last: The highest number that a release ever had here, including removed ones.
        releases: Oldest first.
    """

    line: str
    sequence: int
    created: datetime
    expires: datetime | None
    served: tuple[int, ...]
    last: int
    releases: tuple[Release, ...]

    @property
    def serving(self) -> int:
        """Number of the release that serves."""
        return self.served[-1]

    @property
    def current(self) -> Release:
        """The release that serves."""
        return self.release(self.serving)

    @property
    def fallbacks(self) -> tuple[Release, ...]:
        """What a fresh server may serve if the current release is damaged, the best first.

        First what served before it, then the others, the newest first.
        """
        there = {release.number: release for release in self.releases}
        before = [there.pop(number) for number in reversed(self.served)]
        return (*before[1:], *reversed(there.values()))

    def release(self, number: int) -> Release:
        """Return the release with a number, which is there."""
        return next(release for release in self.releases if release.number == number)


def published_release(
    published: Published | None, release: Release, *, created: datetime, expires: datetime | None
) -> Published:
    """Return the statement with a new release, which serves. Its number must be a new one."""
    if published is None:
        first = Published("", 0, created, expires, (release.number,), release.number, (release,))
        return renewed(first, created=created, expires=expires)
    if release.number <= published.last:
        raise ValueError(f"{release.number} is not a new number: {published.last} was given")
    new = replace(
        published,
        served=(*published.served, release.number),
        last=release.number,
        releases=(*published.releases, release),
    )
    return renewed(new, created=created, expires=expires)


def served_again(
    published: Published, number: int, *, created: datetime, expires: datetime | None
) -> Published:
    """Return the statement with a release that was published once more, and serves."""
    before = (each for each in published.served if each != number)
    return renewed(replace(published, served=(*before, number)), created=created, expires=expires)


def rolled_back(
    published: Published, to: int | None = None, *, created: datetime, expires: datetime | None
) -> Published:
    """Return the statement with a release that served before as the one that serves.

    What serves now is not gone back to, unless it is named.

    Args:
        to: Its number; None: what served before.

    Raises:
        FormatError: Nothing served before, or there is no release ``to``; with those there are.
    """
    if to is None:
        if len(published.served) == 1:
            raise FormatError(f"release {published.serving} serves, and none served before it")
        served = published.served[:-1]
    elif to not in {release.number for release in published.releases}:
        raise FormatError(f"there is no release {to}")
    elif to in published.served:
        served = published.served[: published.served.index(to) + 1]
    else:
        served = (*published.served, to)
    return renewed(replace(published, served=served), created=created, expires=expires)


def pruned(published: Published, *, created: datetime, expires: datetime | None) -> Published:
    """Return the statement with only the release that serves and the one that served before it."""
    served = published.served[-2:]
    kept = tuple(release for release in published.releases if release.number in served)
    return renewed(
        replace(published, served=served, releases=kept), created=created, expires=expires
    )


def renewed(published: Published, *, created: datetime, expires: datetime | None) -> Published:
    """Return the statement as the next one of its line, with a new time."""
    line = published.line or secrets.token_hex(8)
    sequence = published.sequence + 1
    return replace(published, line=line, sequence=sequence, created=created, expires=expires)


def versions(published: Published) -> dict[str, set[int]]:
    """Return the versions of each model that any release names."""
    found: dict[str, set[int]] = {}
    for release in published.releases:
        for name, version in release.versions.items():
            found.setdefault(name, set()).add(version)
    return found
