"""Keys and signatures as cosign makes them, in this process; cosign's are in tests/containers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from deploy.artefacts.keys import Signer, read_signer
from tests.keys import new_key, sign, write_key


def pair(folder: Path, name: str) -> Path:
    """Make a key pair; return the private key's file."""
    private, path = new_key(), folder / f"{name}.key"
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(pem)
    write_key(private, path.with_suffix(".pub"))
    return path


def public(key: Path) -> Signer:
    return read_signer(key.with_suffix(".pub"))


def sign_bytes(content: bytes, key: Path) -> bytes:
    return sign(load_pem_private_key(key.read_bytes(), None), content)


@contextmanager
def _signer_of(key: Path, _: Signer | None) -> Iterator[Signer]:
    yield public(key)


def without_cosign(patch: pytest.MonkeyPatch) -> None:
    """Sign statements with `sign_bytes`."""
    patch.setattr("deploy.publishing.signed.signer_of", _signer_of)
    patch.setattr("deploy.publishing.signed.sign_bytes", sign_bytes)
