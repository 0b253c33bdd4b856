"""Tags in a registry that are trusted: they name no older image than before, and no other one.

A signature says that an image is its publisher's, not that it is the newest, nor what it is for.
What tells is signed with it: the tag, the tag's own line, and a number that grows. The last ones
are remembered for each key and tag.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone

from deploy.artefacts.cosign import Signed, signed_of
from deploy.artefacts.keys import Signer
from deploy.artefacts.reference import Reference
from deploy.artefacts.seen import memory_of, remember, seen_at
from deploy.host.errors import SignatureError
from deploy.host.files import locked
from numl_formats.trust import Seen


def verify_tag(tag: Reference, image: Reference, signer: Signer) -> Signed | None:
    """Return what is signed with the image that a tag names, and remember it.

    Args:
        image: By digest; `verify_image` has accepted it.

    Returns:
        None: cosign alone has signed it, without a number.

    Raises:
        SignatureError: It was signed for another tag, or the tag has named a newer image before.
    """
    found, place = signed_of(image, signer), str(tag)
    with locked(memory_of(place, signer).with_suffix(".lock")):
        signed = _accepted(found, tag, image, signer)
        if signed is not None:
            remember(place, signer, Seen(signed.line, signed.sequence, _digest(image)))
    return signed


def check_tag(tag: Reference, image: Reference, signer: Signer) -> None:
    """Raise what `verify_tag` would if the tag named the image; nothing is remembered."""
    _accepted(signed_of(image, signer), tag, image, signer)


def refuse_gone(tag: Reference, signer: Signer) -> None:
    """Raise a `SignatureError` if a tag that names nothing named something signed before."""
    place = str(tag)
    if seen_at(place, signer) is not None:
        cause = f"{place}, which named a signed image, is gone"
        raise SignatureError(cause, "ask its publisher: numlkit publish DEST --sign KEY")


def next_signed(
    tag: Reference, named: Reference | None, releases: Iterable[Reference], signer: Signer
) -> Signed:
    """Return what is to be signed with the next image for a tag: after everything that was.

    If somebody without the key has replaced what the tag names, the clock still grows.

    Args:
        named: What the tag names now, by digest.
        releases: What it may have named before, by digest; read if nothing else tells its line.
    """
    seen = seen_at(str(tag), signer)
    before = _newest(_signed_with([named] if named is not None else [], signer), tag, seen)
    if seen is None and before is None:
        before = _newest(_signed_with(releases, signer), tag, None)
    least = max((each.sequence for each in (seen, before) if each is not None), default=0) + 1
    line = next((each.line for each in (seen, before) if each is not None), secrets.token_hex(8))
    now = datetime.now(timezone.utc).replace(microsecond=0)
    return Signed(tag.tag, line, max(least, int(now.timestamp())), now)


def _signed_with(images: Iterable[Reference], signer: Signer) -> Iterator[Signed]:
    for image in images:
        with suppress(SignatureError):
            yield from signed_of(image, signer)


def _accepted(
    found: tuple[Signed, ...], tag: Reference, image: Reference, signer: Signer
) -> Signed | None:
    place = str(tag)
    seen = seen_at(place, signer)
    signed = _newest(found, tag, seen)
    why = _refusal(tag.tag, found, signed, seen, _digest(image))
    if why is not None:
        remedy = "ask its publisher; to go back, they publish the older build again: "
        remedy += "numlkit publish DEST --sign KEY"
        if signed is None and any(each.tag == tag.tag for each in found):  # of another line
            remedy = "check with its publisher that this is the right repository, then remove "
            remedy += str(memory_of(place, signer))
        raise SignatureError(f"{place} names {why}", remedy)
    return signed


def _digest(image: Reference) -> str:
    return image.digest.removeprefix("sha256:")


def _newest(found: Iterable[Signed], tag: Reference, seen: Seen | None) -> Signed | None:
    lines = (each for each in found if each.tag == tag.tag)
    own = (each for each in lines if seen is None or each.line == seen.line)
    return max(own, key=lambda each: each.sequence, default=None)


def _refusal(
    tag: str, found: tuple[Signed, ...], signed: Signed | None, seen: Seen | None, digest: str
) -> str | None:
    """Return what a tag names instead of what it should; None: it is right."""
    if signed is None and found:
        tags = {each.tag for each in found}
        where = "this tag of another repository" if tag in tags else ", ".join(sorted(tags))
        return f"an image that was signed for {where}"
    if seen is None:
        return None
    if signed is None or signed.sequence < seen.sequence:
        number = f"number {signed.sequence}" if signed is not None else "no number"
        older = f"an older image than before: it is signed with {number}"
        return f"{older}, and {seen.sequence} was seen there"
    if signed.sequence == seen.sequence and digest != seen.sha256:
        return f"another image than before with number {seen.sequence}"
    return None
