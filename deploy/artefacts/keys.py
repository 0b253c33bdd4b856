"""The keys of signatures: whose public key is in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.host.errors import SignatureError

_PGP = b"-----BEGIN PGP PUBLIC KEY BLOCK-----"


@dataclass(frozen=True)
class PublicKey:
    """A public key in a file.

    Attributes:
        kind: ``pem`` as cosign and OpenSSL write it, or ``pgp``, with which only a .sif is signed.
    """

    path: Path
    kind: Literal["pem", "pgp"]


def read_public_key(path: Path) -> PublicKey:
    """Return the key in a file.

    Raises:
        SignatureError: If there is none.
    """
    # They take long, and nothing else of most commands needs them.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        content = path.read_bytes()
    except OSError as error:
        raise SignatureError(
            f"public key {path}: {error.strerror}", "--verify cosign.pub"
        ) from None
    if _PGP in content:
        return PublicKey(path.absolute(), "pgp")
    try:
        load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        private = b"PRIVATE KEY" in content
        raise SignatureError(
            f"{path} is {'a private key' if private else 'no public key'}",
            "name the public one that belongs to it, such as cosign.pub",
        ) from None
    return PublicKey(path.absolute(), "pem")
