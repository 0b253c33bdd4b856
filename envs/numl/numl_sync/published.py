"""``published.json``: the releases of a bucket, and which of them serves.

``{"format": 1, "serving": R, "releases": [{"number": R, "models": {NAME: {"version": N, "config":
TEXT, "files": {PATH: {"sha256": HEX, "bytes": SIZE}}}}}]}``: the text of a model's
``config.pbtxt``, and the files of its version by their paths below ``NAME/N/``. Whatever else it
says is for others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from numl_sync.errors import ReleaseError

NAME = "published.json"
LARGEST = 16 << 20
"""Most bytes of a ``published.json`` that are read."""

_FORMAT = 1
_PART = re.compile(r"(?!\.{1,2}$)[0-9A-Za-z._-]{1,200}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_POLICY = r"version_policy:?\{{specific:?\{{versions:\[?{}\]?\}}\}}"


@dataclass(frozen=True, slots=True)
class File:
    """What a file must be: its digest, and its size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Model:
    """A model of a release.

    Attributes:
        config: The text of its ``config.pbtxt``, which serves ``version`` alone.
        files: By their paths below the version's folder, which are safe to write to.
    """

    name: str
    version: int
    config: str
    files: Mapping[str, File]

    @property
    def place(self) -> str:
        """The version's folder, below the models' folder and the bucket's prefix."""
        return f"{self.name}/{self.version}"


@dataclass(frozen=True, slots=True)
class Release:
    """What is to be served."""

    number: int
    models: tuple[Model, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as `read_release` reads it."""
        models = {
            model.name: {
                "version": model.version,
                "config": model.config,
                "files": {
                    path: {"sha256": file.sha256, "bytes": file.size}
                    for path, file in model.files.items()
                },
            }
            for model in self.models
        }
        return {"number": self.number, "models": models}


def read_published(content: bytes) -> tuple[Release, list[Release]]:
    """Return the release that serves, and those before it that can be read, the newest first.

    Raises:
        ReleaseError: It is not of this format, or says what must not be: a path that leaves its
            folder, a configuration that does not serve the version.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ReleaseError(f"{NAME} is not JSON: {error}") from None
    if not isinstance(document, dict) or "format" not in document:
        raise ReleaseError(f"{NAME} is not what numlkit publish writes")
    if document["format"] != _FORMAT:
        raise ReleaseError(
            f"{NAME} has format {document['format']!r}, but this image reads format {_FORMAT}: "
            "use an image of the kit that published it"
        )
    try:
        number = _whole(document["serving"], "serving")
        listed = document["releases"]
        found = [each for each in listed if each["number"] == number]
        if len(found) != 1:
            raise ReleaseError(
                f"{NAME} lists release {number}, the one in service, {len(found)} times"
            )
        release = read_release(found[0])
    except (KeyError, TypeError, AttributeError) as error:
        raise ReleaseError(f"{NAME} is incomplete: {_words(error)}") from None
    older = []
    for each in listed:
        with suppress(ReleaseError, KeyError, TypeError, AttributeError):
            if each["number"] < number:
                older.append(read_release(each))
    return release, sorted(older, key=lambda each: each.number, reverse=True)


def read_release(document: Mapping[str, Any]) -> Release:
    """Return one entry of ``releases``.

    Raises:
        ReleaseError: As `read_published`.
        KeyError: Something is missing.
        TypeError, AttributeError: Something is of another type.
    """
    number = _whole(document["number"], "number")
    models = tuple(_model(name, said) for name, said in sorted(document["models"].items()))
    if not models:
        raise ReleaseError(f"release {number} has no models")
    return Release(number, models)


def _model(name: str, said: Mapping[str, Any]) -> Model:
    if not _PART.fullmatch(name):
        raise ReleaseError(f"{name!r} is not a model name")
    version = _whole(said["version"], f"version of {name}")
    config = said["config"]
    policy = _POLICY.format(version)
    if not isinstance(config, str) or not re.search(policy, re.sub(r"\s", "", config)):
        raise ReleaseError(
            f"config.pbtxt of {name} does not serve version {version} alone: "
            f"version_policy {{ specific {{ versions: {version} }} }} is missing"
        )
    files = {path: _file(f"{name}/{version}/{path}", said["files"][path]) for path in said["files"]}
    if not files:
        raise ReleaseError(f"{name}/{version} has no files")
    folders = {str(folder) for path in files for folder in PurePosixPath(path).parents}
    for path in files:
        if not all(_PART.fullmatch(part) for part in path.split("/")) or path in folders:
            raise ReleaseError(f"{name}/{version} has an invalid file name: {path!r}")
    return Model(name, version, config, files)


def _file(name: str, said: Mapping[str, Any]) -> File:
    digest, size = said["sha256"], said["bytes"]
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise ReleaseError(f"sha256 of {name} is not valid: {digest!r}")
    if type(size) is not int or size < 0:
        raise ReleaseError(f"size of {name} is not valid: {size!r}")
    return File(digest, size)


def _whole(value: object, what: str) -> int:
    if type(value) is not int or value < 1:
        raise ReleaseError(f"{what} is {value!r}, not a number of at least 1")
    return value


def _words(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
