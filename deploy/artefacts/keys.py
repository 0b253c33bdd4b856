"""Who signs, and who must have signed: keys in files, or whoever logs in without one (keyless)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from deploy.host.console import Say
from deploy.host.errors import SignatureError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TWO_LINES = 'identity = "release@example.org" and issuer = "https://accounts.example.org"'
_PGP = b"-----BEGIN PGP PUBLIC KEY BLOCK-----"


@dataclass(frozen=True)
class Keyless:
    """A certificate for whoever logs in, made for one signature.

    Attributes:
        show: Shows a line that says where to log in.
    """

    show: Say

    def __str__(self) -> str:
        """Return it as typed on the command line."""
        return "keyless"


SigningKey: TypeAlias = Path | Keyless
"""cosign's private key, or none."""


def parse_signing_key(text: str, show: Say) -> SigningKey:
    """Return what ``--sign`` names; ``show`` shows where to log in."""
    return Keyless(show) if text == "keyless" else Path(text)


@dataclass(frozen=True)
class Signer:
    """The expected signer, read from a file.

    Attributes:
        kind: A public key, ``pem`` as cosign and OpenSSL write it or ``pgp``, which only signs .sif
            files; or ``keyless``.
        identity: If keyless, whom the signature's certificate names.
        issuer: If keyless, the URL of the identity provider that vouched for it.
    """

    path: Path
    kind: Literal["pem", "pgp", "keyless"]
    identity: str = ""
    issuer: str = ""

    def __str__(self) -> str:
        """Return it as messages name it."""
        if self.kind == "keyless":
            return f"{self.identity} ({self.issuer})"
        return f"the owner of {self.path}"


def read_signer(path: Path) -> Signer:
    """Read the expected signer from a file.

    Raises:
        SignatureError: If there is no such file, or it names no signer.
    """
    # They take long, and nothing else of most commands needs them.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        content = path.read_bytes()
    except OSError as error:
        cause = f"public key {path}: {error.strerror}"
        raise SignatureError(cause, "--verify cosign.pub") from None
    path = path.absolute()
    if _PGP in content:
        return Signer(path, "pgp")
    try:
        load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        return _keyless(path, content)
    return Signer(path, "pem")


def same_key(one: Signer, other: Signer) -> bool:
    """Return whether two PEM files hold the same public key, whatever their encoding."""
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    first, second = (load_pem_public_key(each.path.read_bytes()) for each in (one, other))
    return first == second


def _keyless(path: Path, content: bytes) -> Signer:
    try:
        named = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        if b"PRIVATE KEY" in content:
            remedy = "name its public key, such as cosign.pub"
            raise SignatureError(f"{path} is a private key", remedy) from None
        raise SignatureError(
            f"{path} has neither a public key nor a signer",
            f"a public key such as cosign.pub, or two lines: {_TWO_LINES}",
        ) from None
    if named.keys() != {"identity", "issuer"} or not all(
        isinstance(value, str) and value.strip() for value in named.values()
    ):
        raise SignatureError(f"{path} names no signer", f"two lines: {_TWO_LINES}")
    return Signer(path, "keyless", named["identity"], named["issuer"])
