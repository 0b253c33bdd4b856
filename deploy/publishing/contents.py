"""What is in a bucket, and what of it a release needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from deploy.deployment.deployment import CONFIG
from deploy.publishing.pointer import Published, PublishedFile, PublishedModel, versions
from deploy.publishing.s3 import Listed, Stored


@dataclass(frozen=True)
class Contents:
    """What is there.

    Attributes:
        stored: ``published.json`` as it is; None: nothing was published yet.
        published: What it says.
        objects: Every object, by key.
    """

    stored: Stored | None
    published: Published | None
    objects: Mapping[str, Listed]

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {key: listed.bytes for key, listed in self.objects.items()}

    def lacks(self, name: str, model: PublishedModel) -> list[str]:
        """Return the keys of a version's files that are missing, or differ in length."""
        keys = keys_of(name, model)
        return [key for key, file in keys.items() if self.sizes.get(key) != file.bytes]

    def same_version(self, name: str, files: Mapping[str, PublishedFile]) -> int | None:
        """Return the newest complete version with these files, or None."""
        for release in reversed(self.published.releases if self.published is not None else ()):
            there = release.models.get(name)
            if there is not None and there.files == files and not self.lacks(name, there):
                return there.version
        return None

    def outdated(self, kept: Published) -> list[str]:
        """Return the keys of versions that ``kept`` does not name, except one being uploaded.

        Configurations come before the versions that they name.
        """
        before = self.published.releases if self.published is not None else ()
        models = {name for release in before for name in release.models}
        needed = versions(kept)
        found: list[str] = []
        for key in self.sizes:
            name, _, rest = key.partition("/")
            version = rest.partition("/")[0]
            if name not in models:
                continue
            if rest == CONFIG and name not in needed:
                found.insert(0, key)
            old = version.isdecimal() and int(version) <= kept.last
            if old and int(version) not in needed.get(name, ()):
                found.append(key)
        return found


def keys_of(name: str, model: PublishedModel) -> dict[str, PublishedFile]:
    """Return a version's files by their keys."""
    return {f"{name}/{model.version}/{path}": file for path, file in model.files.items()}
