"""``published.json``: the releases that a bucket holds, and which of them serves.

A publication writes it last. A reader of only this file and the files that it names never sees a
partial release.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, Field, ValidationError, model_validator

from deploy.deployment.deployment import MODEL_PATTERN
from deploy.host.errors import PublishError
from numl_formats.location import is_key

POINTER = "published.json"

Number = Annotated[int, Field(ge=1)]


class PublishedFile(BaseModel, frozen=True, extra="forbid"):
    """What a file holds."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0)]


class PublishedModel(BaseModel, frozen=True, extra="forbid"):
    """One model of a release.

    Attributes:
        version: The folder of its files, below the model's: written once, never changed.
        config: The text of its ``config.pbtxt``.
        files: By their paths in that folder.
    """

    version: Number
    config: str
    files: Mapping[str, PublishedFile]

    @model_validator(mode="after")
    def _plain_paths(self) -> PublishedModel:
        for path in self.files:
            if not is_key(path):
                raise ValueError(f"{path!r} is not a file path in a version")
        return self

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


class Release(BaseModel, frozen=True, extra="forbid"):
    """What serves together.

    Attributes:
        number: Counts publications; a version that it brings has the same number.
        created: When it was published.
        revision: The commit of the kit that it was published from.
    """

    number: Number
    created: AwareDatetime
    revision: str
    models: Mapping[str, PublishedModel]

    @model_validator(mode="after")
    def _model_names(self) -> Release:
        for name in self.models:
            if not MODEL_PATTERN.fullmatch(name) or not is_key(name):
                raise ValueError(f"{name!r} is not a model name")
        return self

    @property
    def versions(self) -> dict[str, int]:
        return {name: model.version for name, model in self.models.items()}

    @property
    def summary(self) -> str:
        """Its models and their versions, in a line."""
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())


class Published(BaseModel, frozen=True, extra="forbid"):
    """The content of the file.

    Attributes:
        serving: Number of the release that serves.
        last: The highest number that a release ever had here, including removed ones.
        releases: Oldest first.
    """

    format: Literal[1] = 1
    serving: Number
    last: Number
    releases: tuple[Release, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Published:
        numbers = [release.number for release in self.releases]
        if numbers != sorted(set(numbers)):
            raise ValueError("its releases are not in numerical order")
        if self.serving not in numbers:
            raise ValueError(f"release {self.serving} serves, but is not among its releases")
        if numbers[-1] > self.last:
            raise ValueError(f"its last release is {self.last}, but it lists {numbers[-1]}")
        return self

    @property
    def current(self) -> Release:
        """The release that serves."""
        return self.release(self.serving)

    @property
    def previous(self) -> Release | None:
        """The release before the one that serves."""
        older = [release for release in self.releases if release.number < self.serving]
        return older[-1] if older else None

    def release(self, number: int) -> Release:
        """Return the release with a number, which is there."""
        return next(release for release in self.releases if release.number == number)

    def text(self) -> str:
        return self.model_dump_json(indent=1) + "\n"


def read_pointer(content: bytes, where: str) -> Published:
    """Parse a ``published.json``; PublishError, which names ``where``, if it is not one."""
    try:
        return Published.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        said = f"{place + ': ' if place else ''}{first['msg']}"
        # Anyone may have written it: it must not start a line or move the cursor.
        plain = "".join(letter if letter.isprintable() else " " for letter in said)
        raise PublishError(
            f"{where} was not written by the kit: {plain[:300]}",
            "publish to another prefix, or restore the file",
        ) from None


def with_release(
    published: Published | None,
    *,
    number: int,
    created: datetime,
    revision: str,
    models: Mapping[str, PublishedModel],
) -> Published:
    """Return the pointer with a new release, which serves."""
    new = Release(number=number, created=created, revision=revision, models=models)
    before = published.releases if published is not None else ()
    return Published(serving=number, last=number, releases=(*before, new))


def serving(published: Published, number: int) -> Published:
    """Return the pointer with an existing release as the one that serves."""
    return published.model_copy(update={"serving": published.release(number).number})


def pruned(published: Published) -> Published:
    """Return the pointer with only the release that serves and the one before it."""
    kept = [release for release in (published.previous, published.current) if release is not None]
    return published.model_copy(update={"releases": tuple(kept)})


def versions(published: Published) -> dict[str, set[int]]:
    """Return the versions of each model that any release names."""
    found: dict[str, set[int]] = {}
    for release in published.releases:
        for name, version in release.versions.items():
            found.setdefault(name, set()).add(version)
    return found
