"""Which statement may be served from: its signature, and what was seen before.

The signature of a ``published.json`` lies beside it, at its `signature_path`, and is written before
it: ``cosign sign-blob --key cosign.key`` writes the same, and ``cosign verify-blob --key cosign.pub
--signature FILE published.json`` checks it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from numl_formats.errors import StatementError
from numl_formats.published import Published
from numl_formats.statement import NAME, as_time, read_published

SIGNATURES = "signatures"
"""The folder of the signatures, beside the statement."""
LARGEST_SIGNATURE = 1 << 12
"""Most bytes of a signature that are read."""

Verify = Callable[[bytes, bytes], bool]
"""Returns whether a signature (the file's bytes) of some content is one of the trusted key."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest statement that was verified: no older one is accepted any more.

    It is kept for each key and place.
    """

    line: str
    sequence: int
    sha256: str


def signature_path(content: bytes) -> str:
    """Return where, beside a ``published.json``, the signature of its content is."""
    return f"{SIGNATURES}/{hashlib.sha256(content).hexdigest()}.sig"


def check(
    content: bytes,
    signature: bytes | None,
    *,
    verify: Verify,
    seen: Seen | None,
    now: datetime,
    least: int = 0,
) -> tuple[Published, Seen]:
    """Return a statement that may be served from, and what to remember of it.

    Nothing of the statement is read before its signature is verified.

    Args:
        signature: The file at its `signature_path`; None: there is none.
        seen: What was remembered, for this key and place; None: nothing yet.
        least: The lowest sequence number that is accepted where nothing is remembered.

    Raises:
        StatementError: It is refused.
    """
    if signature is None:
        raise StatementError("signature", f"{NAME} is not signed")
    if not verify(content, signature):
        raise StatementError("signature", f"{NAME} is not signed with the key that is trusted")
    published = read_published(content)
    digest = hashlib.sha256(content).hexdigest()
    if seen is not None and published.line != seen.line:
        raise StatementError(
            "line",
            f"{NAME} is of another line of releases: {published.line or 'none'}, not {seen.line}",
        )
    lowest = max(least, seen.sequence if seen is not None else 1)
    if published.sequence < lowest:
        raise StatementError(
            "replay",
            f"{NAME} is an old one: statement {published.sequence}, {lowest} was published",
        )
    if seen is not None and published.sequence == seen.sequence and digest != seen.sha256:
        raise StatementError(
            "replay", f"{NAME} is another statement {published.sequence} than the one before"
        )
    refuse_expired(published.expires, now)
    return published, Seen(published.line, published.sequence, digest)


def refuse_expired(expires: datetime | None, now: datetime) -> None:
    """Raise a `StatementError` if a statement that ``expires`` then has expired."""
    if expires is not None and expires <= now:
        raise StatementError("expired", f"{NAME} has expired: {as_time(expires)}")
