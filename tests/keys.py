"""Keys of ECDSA P-256, and what is signed with them, as cosign makes both."""

import base64
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


def new_key() -> EllipticCurvePrivateKey:
    return generate_private_key(SECP256R1())


def public_pem(key: PrivateKeyTypes) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def write_key(key: PrivateKeyTypes, path: Path) -> Path:
    """Write a key's public half."""
    path.write_bytes(public_pem(key))
    return path


def sign(key: EllipticCurvePrivateKey, content: bytes) -> bytes:
    """Return what ``cosign sign-blob`` writes."""
    return base64.b64encode(key.sign(content, ECDSA(SHA256())))
