"""Who must have signed: public keys in files."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from deploy.host.errors import SignatureError
from deploy.host.files import read_most

UNVERIFIED = "nothing is verified"
"""What is said where no key is given."""
_LARGEST = 1 << 20


@dataclass(frozen=True)
class Signer:
    """The expected signer, read from a file.

    Attributes:
        kind: A public key, ``pem`` as cosign and OpenSSL write it or ``pgp``, which only signs .sif
            files.
    """

    path: Path
    kind: Literal["pem", "pgp"]

    def __str__(self) -> str:
        return f"the owner of {self.path}"


def read_signer(path: Path) -> Signer:
    """Read the expected signer from a file.

    Raises:
        SignatureError: If there is no such file, or it is not a public key.
    """
    # They take long, and nothing else of most commands needs them.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        content = read_most(path, _LARGEST)
    except OSError as error:
        cause = f"public key {path}: {error.strerror}"
        raise SignatureError(cause, "--verify cosign.pub") from None
    path = path.absolute()
    if b"-----BEGIN PGP PUBLIC KEY BLOCK-----" in content:
        return Signer(path, "pgp")
    try:
        load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        what = "is a private key" if b"PRIVATE KEY" in content else "is not a public key"
        remedy = "name the public key, such as cosign.pub"
        raise SignatureError(f"{path} {what}", remedy) from None
    return Signer(path, "pem")


def fingerprint(signer: Signer) -> str:
    """Return what tells a public key from others; in PEM, whatever its encoding."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_public_key,
    )

    content = signer.path.read_bytes()
    if signer.kind == "pgp":
        return sha256(content).hexdigest()
    key = load_pem_public_key(content)
    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def verifier(signer: Signer) -> Callable[[bytes, bytes], bool]:
    """Return whether a signature, as ``cosign sign-blob`` writes it, is a key's for some content.

    Raises:
        SignatureError: If it is not a key of cosign's.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = load_pem_public_key(signer.path.read_bytes()) if signer.kind == "pem" else None
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise SignatureError(f"{signer.path} is not a key of cosign's", "--verify cosign.pub")

    def is_signed(content: bytes, signature: bytes) -> bool:
        try:
            key.verify(base64.b64decode(signature.strip(), validate=True), content, ECDSA(SHA256()))
        except (InvalidSignature, ValueError):
            return False
        return True

    return is_signed
