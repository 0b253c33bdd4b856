"""Release statements that are trusted: signed with a key, and no older than what was seen before.

What was seen is kept in the state folder, for each key and place (`deploy.artefacts.seen`).
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from deploy.artefacts.keys import Signer, verifier
from deploy.artefacts.seen import memory_of, remember, seen_at
from deploy.host.errors import SignatureError
from deploy.host.files import locked, read_most
from numl_formats.errors import StatementError
from numl_formats.published import Published
from numl_formats.statement import LARGEST, NAME, read_published
from numl_formats.trust import LARGEST_SIGNATURE, check, signature_path

_REMEDIES = {
    "format": "ask its publisher",
    "signature": "have its publisher run numlkit publish DEST --sign KEY, or check the key",
    "line": "check with its publisher that this is the right place, then remove {seen}",
    "replay": "somebody has put an old statement back: ask its publisher",
    "expired": "have its publisher renew it: numlkit publish DEST --sign KEY --valid-for DAYS",
}


def trusted(
    place: str, content: bytes, signature: bytes | None, signer: Signer, now: datetime | None = None
) -> Published:
    """Return a statement that is signed, and remember it: no older one is accepted any more.

    Args:
        place: Where it was found, as it is always spelled.
        signature: What lies at its `signature_path`; None: nothing.
        now: What time it is; None: ask the clock.

    Raises:
        SignatureError: It is refused.
    """
    verify, memory = verifier(signer), memory_of(place, signer)
    with locked(memory.with_suffix(".lock")):
        seen = seen_at(place, signer)
        try:
            now = now or datetime.now(timezone.utc)
            published, new = check(content, signature, verify=verify, seen=seen, now=now)
        except StatementError as error:
            remedy = _REMEDIES[error.reason].format(seen=memory)
            raise SignatureError(f"{place}: {error}", remedy) from None
        remember(place, signer, new)
    return published


def trusted_in(folder: Path, signer: Signer) -> Published:
    """Return the statement of a published folder, if it is `trusted`."""
    try:
        content = read_most(folder / NAME, LARGEST + 1)
    except OSError as error:
        remedy = "have its publisher run numlkit publish DEST --sign KEY"
        raise SignatureError(f"{folder / NAME}: {error.strerror}", remedy) from None
    try:
        signature = read_most(folder / signature_path(content), LARGEST_SIGNATURE)
    except OSError:
        signature = None
    return trusted(str(folder.resolve()), content, signature, signer)


def is_published(folder: Path, signer: Signer | None = None) -> bool:
    """Return whether a folder has a release statement, or had one when this signer's was seen."""
    if (folder / NAME).is_file():
        return True
    return signer is not None and seen_at(str(folder.resolve()), signer) is not None


def stated_in(folder: Path) -> Published | None:
    """Return what a published folder says of itself, unverified; None: nothing that can be read."""
    try:
        return read_published(read_most(folder / NAME, LARGEST + 1))
    except (OSError, StatementError):
        return None
