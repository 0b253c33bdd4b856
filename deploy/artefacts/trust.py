"""Release statements that are trusted: signed with a key, and no older than what was seen before.

What was seen is kept in the state folder, for each key and place (`numl_formats.trust.Seen`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.artefacts.keys import Signer
from deploy.host.errors import SignatureError
from deploy.host.files import locked, write_atomically
from deploy.host.paths import state_folder
from numl_formats.errors import StatementError
from numl_formats.published import Published
from numl_formats.statement import NAME, read_published
from numl_formats.trust import LARGEST_SIGNATURE, Seen, Verify, check, signature_path

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

_REMEDIES = {
    "format": "ask its publisher",
    "signature": "have its publisher run numlkit publish DEST --sign KEY, or check the key",
    "line": "check with its publisher that this is the right place, then remove {seen}",
    "replay": "somebody has put an old statement back: ask its publisher",
    "expired": "have its publisher sign it again",
}


def verifier(signer: Signer) -> Verify:
    """Return what checks signatures as ``cosign sign-blob --key`` writes them.

    Raises:
        SignatureError: The signer has no such key.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    key = _public_key(signer)

    def verify(content: bytes, signature: bytes) -> bool:
        try:
            key.verify(base64.b64decode(signature.strip(), validate=True), content, ECDSA(SHA256()))
        except (InvalidSignature, binascii.Error):
            return False
        return True

    return verify


def trusted(place: str, content: bytes, signature: bytes | None, signer: Signer) -> Published:
    """Return a statement that is signed, and remember it: no older one is accepted any more.

    Args:
        place: Where it was found, as it is always spelled.
        signature: What lies at its `signature_path`; None: nothing.

    Raises:
        SignatureError: It is refused.
    """
    verify, memory = verifier(signer), memory_of(place, signer)
    with locked(memory.with_suffix(".lock")):
        seen = _seen(memory)
        try:
            now = datetime.now(timezone.utc)
            published, new = check(content, signature, verify=verify, seen=seen, now=now)
        except StatementError as error:
            remedy = _REMEDIES[error.reason].format(seen=memory)
            raise SignatureError(f"{place}: {error}", remedy) from None
        if new != seen:
            write_atomically(memory, json.dumps({"place": place, **asdict(new)}, indent=1) + "\n")
    return published


def trusted_in(folder: Path, signer: Signer) -> Published:
    """Return the statement of a published folder, if it is `trusted`."""
    try:
        content = (folder / NAME).read_bytes()
    except OSError as error:
        remedy = "have its publisher run numlkit publish DEST --sign KEY"
        raise SignatureError(f"{folder / NAME}: {error.strerror}", remedy) from None
    try:
        with (folder / signature_path(content)).open("rb") as stream:
            signature = stream.read(LARGEST_SIGNATURE)
    except OSError:
        signature = None
    return trusted(str(folder.resolve()), content, signature, signer)


def is_published(folder: Path, signer: Signer | None = None) -> bool:
    """Return whether a folder has a release statement, or had one when this signer's was seen."""
    if (folder / NAME).is_file():
        return True
    return signer is not None and memory_of(str(folder.resolve()), signer).exists()


def stated_in(folder: Path) -> Published | None:
    """Return what a published folder says of itself, unverified; None: nothing that can be read."""
    try:
        return read_published((folder / NAME).read_bytes())
    except (OSError, StatementError):
        return None


def memory_of(place: str, signer: Signer) -> Path:
    """Return the file that says what was seen of a place with a key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = _public_key(signer).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    name = hashlib.sha256(key + b"\0" + place.encode(errors="surrogateescape")).hexdigest()
    return state_folder() / "seen" / f"{name[:32]}.json"


def _public_key(signer: Signer) -> EllipticCurvePublicKey:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if signer.kind == "pem":
        key = load_pem_public_key(signer.path.read_bytes())
        if isinstance(key, EllipticCurvePublicKey) and key.curve.name == "secp256r1":
            return key
    cause = f"{signer.path} cannot verify a release statement: it is not a key of cosign's"
    raise SignatureError(cause, "--verify cosign.pub")


def _seen(memory: Path) -> Seen | None:
    try:
        found = json.loads(memory.read_bytes())
        return Seen(str(found["line"]), int(found["sequence"]), str(found["sha256"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        remedy = "remove it, if you trust what the place says now"
        raise SignatureError(f"{memory} is damaged", remedy) from None
