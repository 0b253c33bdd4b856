"""What is in a bucket, and what of it a release needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from deploy.publishing.s3 import Listed
from deploy.publishing.signed import Stated
from numl_formats.published import File, Model, Published, versions
from numl_formats.repository import CODE, CONFIG, DATA_FILES
from numl_formats.statement import NAME, statement
from numl_formats.trust import SIGNATURES, signature_path

_SIGNATURE = re.compile(rf"{SIGNATURES}/[0-9a-f]{{64}}\.sig")


@dataclass(frozen=True)
class Contents:
    """What is there.

    Attributes:
        stated: ``published.json`` as it is, with its signature.
        objects: Every object, by key.
    """

    stated: Stated
    objects: Mapping[str, Listed]

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {key: listed.bytes for key, listed in self.objects.items()}

    def lacks(self, name: str, model: Model) -> list[str]:
        """Return the keys of a version's files that are missing, or differ in length."""
        keys = keys_of(name, model)
        return [key for key, file in keys.items() if self.sizes.get(key) != file.bytes]

    def unneeded(self, before: Published, kept: Published) -> list[str]:
        """Return the keys of files that ``before`` lists and ``kept`` does not.

        Configurations come before the versions that they name.
        """
        needed = files_of(kept)
        configs = sorted(configs_of(before) - self._configs_in_use(kept))
        files = [key for key in files_of(before) if key not in needed]
        return [key for key in (*configs, *files) if key in self.objects]

    def unfinished(self, kept: Published) -> list[str]:
        """Return the keys that a killed command may have left; their mark is to be read.

        A number that is still to be given may be another publish's that is at work. Configurations
        come before the versions that they name.
        """
        known, in_use = versions(kept), self._configs_in_use(kept)
        configs, files = [], []
        for key in self.objects:
            name, version, path, *more = (*key.split("/"), "", "")
            if key == f"{name}/{CONFIG}" and key not in in_use:
                configs.append(key)
            if path not in _PUBLISHED or any(more) or not version.isdecimal():
                continue
            if int(version) <= kept.last and int(version) not in known.get(name, ()):
                files.append(key)
        return [*configs, *files]

    def _configs_in_use(self, kept: Published) -> set[str]:
        """Return the keys of the configurations of models with a version whose code is there.

        That of a kit before format 2 no statement lists any more.
        """
        return {
            f"{name}/{CONFIG}"
            for name, numbers in versions(kept).items()
            if any(f"{name}/{number}/{CODE}" in self.objects for number in numbers)
        }

    def old_signatures(self, kept: Published) -> list[str]:
        """Return the keys of signatures of neither the current statement nor the one to come.

        The latter's is there if a command that was killed had the same to say in the same second.
        """
        needed = {signature_path(statement(kept))}
        if self.stated.content is not None:
            needed.add(signature_path(self.stated.content))
        return [key for key in self.objects if _SIGNATURE.fullmatch(key) and key not in needed]

    def left_alone(self, published: Published) -> list[str]:
        """Return what a Triton that polls the bucket by itself does not get from what serves."""
        models = published.current.models
        names = {key.partition("/")[0] for key in self.sizes if key.endswith(f"/{CONFIG}")}
        without = [name for name in sorted(names) if name not in models or not models[name].code]
        return [
            f"{name} has no code in release {published.serving}: a Triton that polls the bucket by "
            "itself keeps what it has"
            for name in without
        ]

    def unknown(self, published: Published) -> list[str]:
        """Return the keys of what the kit has not published here."""
        known = {NAME, *files_of(published), *configs_of(published)}
        return [key for key in self.objects if key not in known and not _SIGNATURE.fullmatch(key)]


_PUBLISHED = {*DATA_FILES, CODE, CONFIG}


def keys_of(name: str, model: Model) -> dict[str, File]:
    """Return a version's files by their keys.

    Its ``config.pbtxt`` lies in the version's folder, too; what Triton reads is a copy of it.
    """
    return {
        f"{name}/{model.version}/{path}": file
        for path, file in (*model.files.items(), *model.code.items())
    }


def configs_of(published: Published) -> set[str]:
    """Return the keys of the configurations that the kit has written: of models with code.

    A kit before format 2 wrote one for every model.
    """
    return {
        f"{name}/{CONFIG}"
        for release in published.releases
        for name, model in release.models.items()
        if model.code or not published.line
    }


def files_of(published: Published) -> dict[str, File]:
    """Return the files of all releases by their keys."""
    found: dict[str, File] = {}
    for release in published.releases:
        for name, model in release.models.items():
            found |= keys_of(name, model)
    return found
