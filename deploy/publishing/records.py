"""What a folder's releases are, and what kits before format 2 wrote there: a ``release.json``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, ValidationError

from deploy.host.errors import PublishError
from deploy.host.files import read_most
from numl_formats.published import IMAGE_NAMES, Image, Published, Release
from numl_formats.statement import NAME

RECORD = "release.json"
MARK = ".numlkit"
"""Marks a release's folder as made by the kit."""


_LARGEST = 1 << 16


def _printable(text: str) -> str:
    if not text.isprintable():  # whoever may write to the folder may write it
        raise ValueError("controls a terminal")
    return text


_Text = Annotated[str, AfterValidator(_printable)]


class Record(BaseModel, frozen=True, extra="forbid"):
    """What a release is: the content of its ``release.json``."""

    format: Literal[1] = 1
    number: Annotated[int, Field(ge=1)]
    created: AwareDatetime
    revision: _Text
    form: Literal["sif", "sandbox"]
    source: _Text
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0, lt=1 << 53)]


def read_record(path: Path) -> Record | None:
    """Return what a ``release.json`` says; None: there is none, or it is not the kit's."""
    try:
        said = Record.model_validate_json(read_most(path, _LARGEST))
    except (OSError, ValidationError):
        return None
    return said if path.parent.name == str(said.number) else None


def read_records(root: Path, linked: int | None) -> Published | None:
    """Return what the records in a folder say; None if there are none.

    Args:
        linked: The release that ``current`` points to.

    Raises:
        PublishError: If one was not written by the kit.
    """
    numbers = sorted({int(path.name) for path in root.iterdir() if path.name.isdecimal()})
    releases = []
    for number in numbers:
        path = root / str(number) / RECORD
        if not os.path.lexists(path):
            continue
        said = read_record(path)
        if said is None:
            raise PublishError(f"{path} was not written by the kit", "publish to another folder")
        if (path.parent / IMAGE_NAMES[said.form]).exists():
            image = Image(said.form, said.source, said.sha256, said.bytes)
            releases.append(Release(number, said.created, said.revision, image=image))
    if not releases:
        return None
    there = [release.number for release in releases]
    serving = linked if linked in there else there[-1]
    return Published(
        line="",
        sequence=0,
        created=releases[-1].created,
        expires=None,
        served=tuple(number for number in there if number <= serving),
        last=numbers[-1],
        releases=tuple(releases),
    )


def of_images(root: Path, published: Published | None) -> Published | None:
    """Return a folder's statement; PublishError if it is a bucket's, of which this is a copy."""
    for release in published.releases if published is not None else ():
        if release.image is None:
            raise PublishError(
                f"{root / NAME} is a bucket's: release {release.number} has models, not an image",
                "name the bucket itself (s3://...), or another folder",
            )
    return published
