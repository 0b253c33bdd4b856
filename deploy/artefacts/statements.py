"""What lies beside an artefact: the list of its parts, its provenance, and all checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from deploy.artefacts.manifest import Artefact, read_manifest
from deploy.artefacts.provenance import Build, resource, statement
from deploy.artefacts.sbom import Component, sbom
from deploy.host.files import sha256_of, write_atomically

CHECKSUMS = "SHA256SUMS"
SIGNATURE = f"{CHECKSUMS}.sig"


def sbom_of(artefact: Artefact) -> str:
    return f"{_stem(artefact)}.cdx.json"


def provenance_of(artefact: Artefact) -> str:
    return f"{_stem(artefact)}.provenance.json"


def write_statements(
    folder: Path, artefact: Artefact, parts: Iterable[Component], build: Build
) -> None:
    """Write the list of an artefact's parts, and its provenance, which names the list's digest."""
    kind = "file" if artefact.kind == "env" else "container"
    text = sbom(kind, artefact.name, parts, epoch=artefact.created)
    write_atomically(folder / sbom_of(artefact), text)
    listed = resource(sbom_of(artefact), hashlib.sha256(text.encode()).hexdigest())
    text = statement(build, subject=resource(artefact.name, artefact.sha256), sbom=listed)
    write_atomically(folder / provenance_of(artefact), text)


def write_checksums(folder: Path) -> None:
    """Write the sha256 of every artefact and of what lies beside it, as ``sha256sum -c`` reads it.

    A signature of other checksums is removed.
    """
    sums: dict[str, str] = {}
    for artefact in read_manifest(folder).artefacts:
        if artefact.kind != "image":
            sums[artefact.name] = artefact.sha256
        for name in (sbom_of(artefact), provenance_of(artefact)):
            if (folder / name).is_file():
                sums[name] = sha256_of(folder / name)
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    path = folder / CHECKSUMS
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        (folder / SIGNATURE).unlink(missing_ok=True)
        write_atomically(path, text)


def read_checksums(folder: Path) -> dict[str, str]:
    """Return the checksums of a folder by file name; none if nothing has written them."""
    try:
        lines = (folder / CHECKSUMS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _stem(artefact: Artefact) -> str:
    """Return the first part of the names: the file's, or the image's tag with its kind."""
    if artefact.kind != "image":
        return artefact.name
    return f"{artefact.name.rpartition('/')[2].replace(':', '-')}.image"
