"""Signing what was built, in place: the .sif itself, and the checksums of everything."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from deploy.artefacts.cosign import changed, sign_file, signer_of, verify_file
from deploy.artefacts.keys import Signer
from deploy.artefacts.manifest import Artefact, record
from deploy.artefacts.sif_signature import sign_sif, verify_sif
from deploy.artefacts.statements import (
    CHECKSUMS,
    SIGNATURE,
    provenance_of,
    read_checksums,
    sbom_of,
    subjects,
    with_subject,
    write_checksums,
)
from deploy.host.errors import SignatureError
from deploy.host.files import locked, sha256_of, work_folder, write_atomically


def sign_built(
    folder: Path, artefact: Artefact, key: Path, named: Signer | None = None
) -> Artefact:
    """Sign an artefact and its folder's checksums unless they are signed; return the artefact.

    A .sif changes by that, and so do its entry in the manifest and its provenance, which names both
    digests. What was signed with another key has to be built again.

    Args:
        artefact: As the manifest has it.
        named: Who the key must belong to; None: anyone.

    Raises:
        SignatureError: If it cannot be signed, or is not what was built.
    """
    with locked(folder / ".lock"), signer_of(key, named) as signer:
        if _changes(folder, artefact, key, signer):
            artefact = _sign(folder, artefact, key)
        write_checksums(folder, artefact)
        sums, signature = folder / CHECKSUMS, folder / SIGNATURE
        if not _is_signed(sums, signature, signer):
            with tempfile.TemporaryDirectory() as scratch:
                partial = Path(scratch, signature.name)
                sign_file(sums, partial, key)
                write_atomically(signature, partial.read_text(encoding="utf-8"))
    return artefact


def would_sign(
    folder: Path, artefact: Artefact, key: Path, named: Signer | None = None
) -> Artefact:
    """Return what `sign_built` would, and raise as it would; an unknown digest is empty."""
    with signer_of(key, named) as signer:
        changes = _changes(folder, artefact, key, signer)
    return artefact.model_copy(update={"sha256": ""}) if changes else artefact


def verify_built(folder: Path, artefact: Artefact, signer: Signer) -> None:
    """Check that an artefact, its SBOM and its provenance are as they were signed.

    Raises:
        SignatureError: If one is not signed by this signer, or has changed since.
    """
    verify_file(folder / CHECKSUMS, folder / SIGNATURE, signer)
    signed = read_checksums(folder)
    names = [sbom_of(artefact), provenance_of(artefact)]
    if artefact.kind != "image":
        names.append(artefact.name)
    for name in names:
        path = folder / name
        if not path.is_file() or signed.get(name) != sha256_of(path):
            raise changed(str(path), signer)
    # An image is not a file: its id is in its provenance.
    statement = folder / provenance_of(artefact)
    if artefact.sha256.removeprefix("sha256:") not in subjects(statement.read_text("utf-8")):
        raise changed(artefact.name, signer)
    if artefact.kind == "sif":
        verify_sif(folder / artefact.name, signer)


def _changes(folder: Path, artefact: Artefact, key: Path, signer: Signer) -> bool:
    """Return whether signing changes the artefact itself; SignatureError if it cannot be signed."""
    if artefact.kind == "image":
        return False
    _require_built(folder, artefact)
    if artefact.unsigned is not None:
        try:
            verify_sif(folder / artefact.name, signer)
        except SignatureError:
            raise SignatureError(
                f"{folder / artefact.name} is already signed, but not with {key}",
                "numlkit build --target sif builds it again",
            ) from None
    return artefact.unsigned is None


def _is_signed(sums: Path, signature: Path, signer: Signer) -> bool:
    try:
        verify_file(sums, signature, signer)
    except SignatureError:
        return False
    return True


def _sign(folder: Path, artefact: Artefact, key: Path) -> Artefact:
    path, statement = folder / artefact.name, folder / provenance_of(artefact)
    with work_folder(path) as scratch:
        copy = scratch / path.name
        shutil.copy2(path, copy)
        sign_sif(copy, key)
        signed = artefact.model_copy(
            update={
                "sha256": sha256_of(copy),
                "bytes": copy.stat().st_size,
                "unsigned": artefact.sha256,
            }
        )
        text = with_subject(statement.read_text(encoding="utf-8"), path.name, signed.sha256)
        copy.replace(path)
    write_atomically(statement, text)
    record(folder, signed)
    return signed


def _require_built(folder: Path, artefact: Artefact) -> None:
    path, statement = folder / artefact.name, folder / provenance_of(artefact)
    build = f"numlkit build --target {artefact.kind}"
    if not path.is_file() or sha256_of(path) != artefact.sha256:
        raise SignatureError(
            f"{path} is not what was built: manifest.json has a different digest", build
        )
    if not statement.is_file() or not (folder / sbom_of(artefact)).is_file():
        raise SignatureError(f"{path} was built without an SBOM", build)
