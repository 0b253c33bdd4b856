"""Where something is published: a destination as typed, parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from deploy.artefacts.reference import Reference, parse_reference
from deploy.host.errors import DeploymentError

# Triton's own expression for an S3 address knows no other characters.
_KEY = re.compile(r"[0-9a-zA-Z._-]+(/[0-9a-zA-Z._-]+)*")
_BUCKET = re.compile(r"[0-9a-z][0-9a-z.-]{1,61}[0-9a-z]")
_FORMS = (
    "s3://BUCKET/PREFIX, s3://https://HOST:PORT/BUCKET/PREFIX, docker://HOST/REPOSITORY, "
    "oras://HOST/REPOSITORY or a folder"
)
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):/?/?")


@dataclass(frozen=True)
class Bucket:
    """A location in an S3 bucket.

    Attributes:
        endpoint: URL of the service; None: AWS's own.
        prefix: The prefix of all keys, without slashes around it; empty: the whole bucket.
    """

    endpoint: str | None
    bucket: str
    prefix: str

    def __str__(self) -> str:
        """Return it as Triton's ``--model-repository`` spells it."""
        parts = (self.endpoint, self.bucket, self.prefix)
        return "s3://" + "/".join(part for part in parts if part)


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


def is_key(path: str) -> bool:
    """Return whether Triton can read a file at ``path`` from a bucket."""
    return _KEY.fullmatch(path) is not None and not {".", ".."} & set(path.split("/"))


def _bucket(text: str) -> Bucket:
    rest = text.removeprefix("s3://")
    endpoint = None
    if "@" in text:
        # Not shown: it would end up in a log.
        raise DeploymentError(
            "the destination has a user or password in it",
            "leave it out: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials",
        )
    if re.match(r"[^/]+:\d+/", rest):
        rest = f"http://{rest}"  # as Triton has it
    if re.match(r"https?://", rest):
        parts = urlsplit(rest)
        try:
            plain = parts.hostname is not None and parts.port != 0
        except ValueError:
            plain = False
        if not plain or parts.query or parts.fragment:
            raise DeploymentError(
                f"{text}: its endpoint is not a URL", "s3://http://HOST:PORT/BUCKET"
            )
        endpoint, rest = f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket):
        raise DeploymentError(f"{text}: {bucket!r} is not the name of a bucket", f"as in {_FORMS}")
    if prefix and not is_key(prefix):
        raise DeploymentError(
            f"{text}: Triton cannot read such a prefix",
            "only letters, digits, '.', '-', '_' and single slashes",
        )
    return Bucket(endpoint=endpoint, bucket=bucket, prefix=prefix)
