"""``dist/manifest.json``: what was built, from what, how large, in what time.

One manifest per output folder. A build replaces the entries of what it made again and
keeps the others as long as their files are there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from deploy.errors import BuildError
from deploy.files import write_atomically

Kind = Literal["env", "image", "sif"]

MANIFEST = "manifest.json"


class Artefact(BaseModel):
    """One thing that was built.

    Attributes:
        kind: What it is; an ``image`` lies in the Docker engine, the others are files.
        name: The file's name in the output folder, or the image's tag.
        bytes: Size of the file, or of the image's content.
        sha256: Digest of the file, or the image's id.
        created: When, by the build's clock: seconds since 1970 (SOURCE_DATE_EPOCH).
        inputs: What it was made from, by name: digests and versions.
        largest: Its largest parts in bytes, by path.
        steps: Seconds of each step of the build that made it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    name: str
    bytes: int
    sha256: str
    created: int
    inputs: Mapping[str, str]
    largest: Mapping[str, int] = {}
    steps: Mapping[str, float]


class Manifest(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    artefacts: tuple[Artefact, ...] = ()


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an output folder; an empty one where there is none.

    Raises:
        BuildError: If the file is not a manifest of this format.
    """
    path = folder / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Manifest()
    except (ValidationError, UnicodeDecodeError):
        raise BuildError(f"{path}: not a manifest of this kit", f"rm {path}") from None


def record(folder: Path, made: Sequence[Artefact]) -> Manifest:
    """Write ``made`` into the manifest of ``folder`` and return it.

    Args:
        folder: The output folder, which holds the files.
        made: What this build made.
    """
    new = {(artefact.kind, artefact.name) for artefact in made}
    kept = [
        artefact
        for artefact in read_manifest(folder).artefacts
        if (artefact.kind, artefact.name) not in new
        and (artefact.kind == "image" or (folder / artefact.name).is_file())
    ]
    ordered = sorted([*kept, *made], key=lambda artefact: (artefact.kind, artefact.name))
    manifest = Manifest(artefacts=tuple(ordered))
    text = json.dumps(manifest.model_dump(mode="json"), indent=2) + "\n"
    write_atomically(folder / MANIFEST, text)
    return manifest
