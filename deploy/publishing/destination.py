"""Where something is published: a destination as typed, parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from deploy.artefacts.reference import Reference, parse_reference
from deploy.host.errors import DeploymentError
from numl_formats.errors import FormatError
from numl_formats.location import Location, read_location

_FORMS = (
    "s3://BUCKET/PREFIX, s3://https://HOST:PORT/BUCKET/PREFIX, docker://HOST/REPOSITORY, "
    "oras://HOST/REPOSITORY or a folder"
)
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):/?/?")


Bucket: TypeAlias = Location


@dataclass(frozen=True)
class InRegistry:
    """A repository in a registry: of images (``docker``) or .sif files (``oras``)."""

    scheme: Literal["docker", "oras"]
    reference: Reference

    def __str__(self) -> str:
        return f"{self.scheme}://{self.reference}"


Destination: TypeAlias = Bucket | InRegistry | Path
"""A path is a folder that other hosts see too: a shared disk, or the staging area of a CVMFS."""


def parse_destination(text: str) -> Destination:
    """Parse a destination.

    Raises:
        DeploymentError: If it has none of the known forms, or has a password in it.
    """
    if text.startswith("s3://"):
        return _bucket(text)
    schemes: tuple[Literal["docker", "oras"], ...] = ("docker", "oras")
    for registry in schemes:
        if text.startswith(f"{registry}://"):
            name = text.removeprefix(f"{registry}://")
            if "@" in name.partition("/")[0]:
                # Not shown: it would end up in a log.
                raise DeploymentError(
                    "the destination has a user or password in it", "leave it out: docker login"
                )
            reference = parse_reference(name)
            if reference.digest:
                raise DeploymentError(f"{text}: the registry assigns the digest", "name a tag")
            return InRegistry(registry, reference)
    scheme = _SCHEME.match(text)
    if scheme is not None:
        raise DeploymentError(f"{text}: cannot publish to {scheme[1]}:", f"one of: {_FORMS}")
    if not text or not text.isprintable():
        raise DeploymentError(f"{text!r} is not a destination", f"one of: {_FORMS}")
    return Path(text).absolute()


def _bucket(text: str) -> Bucket:
    try:
        return read_location(text)
    except FormatError as error:
        remedy = "as in s3://https://HOST:PORT/BUCKET/PREFIX: letters, digits, '.', '-', '_'"
        if "@" in text:
            remedy = (
                "leave it out: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials"
            )
        raise DeploymentError(str(error), remedy) from None
