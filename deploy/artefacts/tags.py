"""Tags in a registry that are trusted: they name no older image than they did before.

A signature says that an image is its publisher's, not that it is the newest. What tells is the
number that is signed with it, which is remembered for each key and tag.
"""

from __future__ import annotations

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
        None: an older kit, or cosign alone, has signed it, without a number.

    Raises:
        SignatureError: The tag has named a newer image before.
    """
    signed, place = signed_of(image, signer), f"{tag.name}:{tag.tag}"
    with locked(memory_of(place, signer).with_suffix(".lock")):
        seen = seen_at(place, signer)
        if seen is not None and (signed is None or signed.sequence < seen.sequence):
            number = f"number {signed.sequence}" if signed is not None else "no number"
            raise SignatureError(
                f"{place} names an older image than before: it is signed with {number}, "
                f"and {seen.sequence} was seen there",
                "ask its publisher; to go back, they publish the older build again: "
                "numlkit publish DEST --sign KEY",
            )
        if signed is not None:
            digest = image.digest.removeprefix("sha256:")
            remember(place, signer, Seen("", signed.sequence, digest))
    return signed
