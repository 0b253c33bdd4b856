"""``dist/manifest.json``: what was built, from what, how large, and how long each step took.

A build replaces the entries of what it rebuilt and keeps the others while their files exist.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from deploy.host.command_line import quote
from deploy.host.errors import BuildError
from deploy.host.files import write_atomically

Kind = Literal["env", "image", "sif"]

MANIFEST = "manifest.json"


class Artefact(BaseModel, frozen=True, extra="forbid"):
    """A file in the output folder, or an image, whose name is its tag and sha256 its id.

    ``unsigned`` is the digest of the file before it was signed, if it was. ``created`` is the
    source's time (Unix, s), ``largest`` has the bytes of the largest parts of its environment,
    ``steps`` the seconds of each step of the build.
    """

    kind: Kind
    name: str
    bytes: int
    sha256: str
    unsigned: str | None = None
    created: int
    inputs: Mapping[str, str]
    largest: Mapping[str, int] = {}
    steps: Mapping[str, float]


class Manifest(BaseModel, frozen=True, extra="forbid"):
    """The content of the file."""

    format: Literal[1] = 1
    artefacts: tuple[Artefact, ...] = ()


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of an output folder; an empty one if it has none."""
    path = folder / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Manifest()
    except (ValidationError, UnicodeDecodeError):
        raise BuildError(f"{path}: not this kit's manifest", f"rm {quote(str(path))}") from None


def record(folder: Path, made: Artefact) -> None:
    artefacts = [
        artefact
        for artefact in read_manifest(folder).artefacts
        if (artefact.kind, artefact.name) != (made.kind, made.name)
        and (artefact.kind == "image" or (folder / artefact.name).is_file())
    ]
    artefacts = sorted([*artefacts, made], key=lambda artefact: (artefact.kind, artefact.name))
    document = Manifest(artefacts=tuple(artefacts)).model_dump(mode="json")
    write_atomically(folder / MANIFEST, json.dumps(document, indent=2) + "\n")
