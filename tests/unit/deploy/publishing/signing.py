"""Keys and signatures as cosign makes them, in this process; cosign's are in tests/containers."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from deploy.artefacts.keys import Signer, read_signer


def pair(folder: Path, name: str) -> Path:
    """Make a key pair; return the private key's file."""
    private = generate_private_key(SECP256R1())
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / f"{name}.key").write_bytes(pem)
    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.pub").write_bytes(pem)
    return folder / f"{name}.key"


def public(key: Path) -> Signer:
    return read_signer(key.with_suffix(".pub"))


def sign_bytes(content: bytes, key: Path) -> bytes:
    private = load_pem_private_key(key.read_bytes(), None)
    assert isinstance(private, EllipticCurvePrivateKey)
    return base64.b64encode(private.sign(content, ECDSA(SHA256())))


@contextmanager
def _signer_of(key: Path, _: Signer | None) -> Iterator[Signer]:
    yield public(key)


def without_cosign(patch: pytest.MonkeyPatch) -> None:
    """Sign statements with `sign_bytes`."""
    patch.setattr("deploy.publishing.signed.signer_of", _signer_of)
    patch.setattr("deploy.publishing.signed.sign_bytes", sign_bytes)
