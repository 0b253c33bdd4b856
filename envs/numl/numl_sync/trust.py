"""Whose statements the agent accepts, and what it remembers of them."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

from numl_formats.errors import FormatError, StatementError
from numl_formats.published import Published
from numl_formats.statement import NAME, as_time, read_published, time_of
from numl_formats.trust import Seen, Verify, check, signature_path
from numl_sync.bucket import Bucket
from numl_sync.errors import UsageError


@dataclass(frozen=True, slots=True)
class Accepted:
    """The newest statement that was accepted.

    Attributes:
        key: Fingerprint of the key that it was verified with; empty: it was not.
        place: The bucket that it was in.
    """

    key: str
    place: str
    seen: Seen
    created: datetime
    expires: datetime | None

    def as_json(self) -> dict[str, object]:
        """Return it as `read_accepted` reads it."""
        return {
            "key": self.key,
            "place": self.place,
            "line": self.seen.line,
            "sequence": self.seen.sequence,
            "sha256": self.seen.sha256,
            "created": as_time(self.created),
            "expires": as_time(self.expires) if self.expires is not None else None,
        }


def read_accepted(said: dict[str, object]) -> Accepted:
    """Return what was written.

    Raises:
        FormatError, KeyError, TypeError: It is something else.
    """
    key, place, line, sha256 = (said[name] for name in ("key", "place", "line", "sha256"))
    sequence, expires = said["sequence"], said["expires"]
    texts = all(isinstance(each, str) for each in (key, place, line, sha256))
    if not texts or type(sequence) is not int:
        raise FormatError("not what was accepted")
    return Accepted(
        str(key),
        str(place),
        Seen(str(line), sequence, str(sha256)),
        time_of(said["created"], "created"),
        time_of(expires, "expires") if expires is not None else None,
    )


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose statements are accepted.

    Attributes:
        place: The bucket.
        verify: None: everybody's who can write there.
        key: Fingerprint of the key; empty: none.
        least: The lowest sequence number that is accepted where nothing is remembered.
    """

    place: str
    verify: Verify | None = None
    key: str = ""
    least: int = 0

    def accept(
        self, bucket: Bucket, content: bytes, before: Accepted | None, now: datetime
    ) -> tuple[Published, Accepted]:
        """Return a statement that may be served from, and what to remember of it.

        Raises:
            StatementError: It is refused.
            BucketError: Its signature could not be read.
        """
        if self.verify is None:
            published = read_published(content)
            digest = hashlib.sha256(content).hexdigest()
            seen = Seen(published.line, published.sequence, digest)
        else:
            published, seen = check(
                content,
                bucket.signature(signature_path(content)),
                verify=self.verify,
                seen=before.seen if before is not None and self.knows(before) else None,
                now=now,
                least=self.least,
            )
        if any(release.image is not None for release in published.releases):
            raise StatementError("format", f"{NAME} is a folder's: it brings images, not models")
        remembered = Accepted(self.key, self.place, seen, published.created, published.expires)
        return published, remembered

    def knows(self, accepted: Accepted) -> bool:
        """Return whether a statement was accepted for the same key and bucket."""
        return (accepted.key, accepted.place) == (self.key, self.place)


def read_trust(key: Path | None, place: str, least: int) -> Trust:
    """Return whose statements are accepted, given the file of a public key, as cosign writes it.

    Raises:
        UsageError: There is no such file, or something else is in it.
    """
    if key is None:
        return Trust(place)
    try:
        public = load_pem_public_key(key.read_bytes())
    except OSError as error:
        raise UsageError(f"{key}: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(f"{key}: not a public key (PEM), as in cosign.pub") from None
    if not isinstance(public, EllipticCurvePublicKey) or public.curve.name != "secp256r1":
        raise UsageError(f"{key}: not a key of ECDSA P-256, as cosign generate-key-pair makes it")
    encoded = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def verify(content: bytes, signature: bytes) -> bool:
        try:
            public.verify(
                base64.b64decode(signature.strip(), validate=True), content, ECDSA(SHA256())
            )
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return True

    return Trust(place, verify, hashlib.sha256(encoded).hexdigest(), least)
