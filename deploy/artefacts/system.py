"""The packages of the distribution in a base image, as its dpkg knows them."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import docker
from docker.errors import NotFound

from deploy.artefacts.docker_client import unstarted
from deploy.host.errors import BuildError

_STATUS = "var/lib/dpkg/status"
_RELEASE = "usr/lib/os-release"
_FIELD = re.compile(r"^([A-Za-z-]+): *(.*)$", re.MULTILINE)
_SETTING = re.compile(r'^([A-Z_]+)="?([^"\n]*)"?$', re.MULTILINE)


class Package(NamedTuple):
    """An installed package."""

    name: str
    version: str
    architecture: str


@dataclass(frozen=True)
class System:
    """A distribution, as ``debian`` and ``12``, and its packages, by name."""

    id: str
    version: str
    packages: tuple[Package, ...]


def system_of_tree(root: Path) -> System:
    """Return what is installed below ``root``; BuildError if dpkg's status is not there."""

    def read(path: str) -> str:
        try:
            return (root / path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise _without(path) from None

    return _read_system(read)


def system_of_image(client: docker.DockerClient, image: str) -> System:
    """Return what is installed in an image; BuildError if dpkg's status is not in it."""

    def read(path: str) -> str:
        try:
            chunks, _ = client.api.get_archive(container, f"/{path}")
        except NotFound:
            raise _without(path) from None
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
            content = tar.extractfile(tar.next() or path)
            return content.read().decode() if content is not None else ""

    with unstarted(client, image) as container:
        return _read_system(read)


def installed(status: str) -> tuple[Package, ...]:
    found = []
    for paragraph in re.split(r"\n{2,}", status):
        fields = dict(_FIELD.findall(paragraph))
        if fields.get("Status", "").endswith(" installed"):
            found.append(Package(fields["Package"], fields["Version"], fields["Architecture"]))
    return tuple(sorted(found))


def _read_system(read: Callable[[str], str]) -> System:
    release = dict(_SETTING.findall(read(_RELEASE)))
    packages = installed(read(_STATUS))
    return System(release.get("ID", "linux"), release.get("VERSION_ID", ""), packages)


def _without(path: str) -> BuildError:
    return BuildError(
        f"the base image has no /{path}: what is installed in it cannot be listed",
        "a base made of Debian or Ubuntu packages",
    )
