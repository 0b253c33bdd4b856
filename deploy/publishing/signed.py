"""A place's statement and its signature: checked before it is built upon, and made anew."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from deploy.artefacts.cosign import sign_bytes, signer_of
from deploy.artefacts.keys import Signer
from deploy.artefacts.seen import begin, has_begun, remember, seen_at
from deploy.artefacts.trust import trusted
from deploy.host.console import as_time
from deploy.host.errors import DamagedError, DeploymentError, PublishError, SignatureError
from deploy.publishing.place import Signing
from numl_formats.errors import FormatError, StatementError
from numl_formats.published import (
    Published,
    Release,
    pruned,
    published_release,
    renewed,
    rolled_back,
    served_again,
)
from numl_formats.statement import NAME, read_published, statement
from numl_formats.trust import Seen, signature_path

_ALWAYS = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Stated:
    """A place's statement as it is there.

    Attributes:
        place: The place, as typed.
        content: ``published.json``; None: nothing was published yet.
        signature: The content's signature; None: there is none.
        signed: Whether anything was ever signed there.
        older: What a kit before format 2 has published, which wrote no such file.
    """

    place: str
    content: bytes | None
    signature: bytes | None
    signed: bool
    older: Published | None = None

    def read(self) -> Published | None:
        """Return what it says, whoever has written it."""
        if self.content is None:
            return self.older
        try:
            published = read_published(self.content)
        except StatementError as error:
            raise _unusable(self.place, error) from None
        return published if published.line else _without_code(published)

    def has_only_begun(self, signer: Signer) -> bool:
        """Whether this host's first signed publish there stopped before its statement was there."""
        return self.signature is None and has_begun(self.place, signer)

    def verified(self, signer: Signer, now: datetime) -> Published | None:
        """Return what it says, signed by ``signer`` and not older than what was seen before.

        Raises:
            SignatureError: If it is not; nothing of it is to be used.
        """
        if self.content is not None:
            return trusted(self.place, self.content, self.signature, signer, now)
        # A first publish from this host that was killed may have left a signature alone.
        left = self.signed and not has_begun(self.place, signer)
        if left or seen_at(self.place, signer) is not None:
            cause = f"{self.place}: {NAME}, which was signed, is gone"
            remedy = "restore it; or, if no publish there ever ended, remove signatures/"
            raise SignatureError(cause, remedy)
        if self.older is not None:
            raise SignatureError(f"{self.place} is not signed", "numlkit publish --sign KEY")
        return None


def _unusable(place: str, error: StatementError) -> DamagedError:
    return DamagedError(f"{place}: {error}", "publish to another place, or restore the file")


def _without_code(published: Published) -> Published:
    """Return what a kit before format 2 has published, which had code in every release.

    Its configurations can be written again only by publishing with code again.
    """
    releases = tuple(
        replace(each, models={n: replace(m, code={}) for n, m in each.models.items()})
        for each in published.releases
    )
    return replace(published, releases=releases)


def current_of(stated: Stated, signer: Signer | None) -> Published | None:
    """Return what a place says; if a signer is named, only what they have signed."""
    if signer is None:
        return stated.read()
    return stated.verified(signer, datetime.now(timezone.utc))


@dataclass(frozen=True)
class Change:
    """A change to a place, signed or not.

    Attributes:
        before: What it is based on; None: a new line of releases.
        expires: Until when it is accepted; None: until something newer is there.
    """

    place: str
    before: Published | None
    now: datetime
    expires: datetime | None
    signing: Signing
    _signer: Signer | None = field(default=None, repr=False)

    @property
    def notes(self) -> list[str]:
        """What a publisher is to know of the signature."""
        if self.signing.key is None:
            return ["not signed: servers cannot verify it (--sign KEY)"]
        return [f"its signature expires {as_time(self.expires)}"] if self.expires else []

    def published(self, release: Release) -> Published:
        """Return the statement with a new release, which serves."""
        return published_release(self.before, release, created=self.now, expires=self.expires)

    def served_again(self, published: Published, number: int) -> Published:
        """Return the statement with a release that is there as the one that serves."""
        return served_again(published, number, created=self.now, expires=self.expires)

    def renewed(self, published: Published) -> Published:
        """Return the same statement with the times of now."""
        return renewed(published, created=self.now, expires=self.expires)

    def pruned(self, published: Published) -> Published:
        """Return the statement with what serves and what served before it."""
        return pruned(published, created=self.now, expires=self.expires)

    def rolled_back(self, published: Published, to: str | None) -> Published:
        """Return the statement after a rollback; ``to`` None: to what served before.

        Raises:
            PublishError: If it is not there; with those that are.
        """
        try:
            numbers = {str(release.number): release.number for release in published.releases}
            if to is not None and to not in numbers:
                raise FormatError(f"there is no release {to}")
            number = numbers[to] if to is not None else None
            return rolled_back(published, number, created=self.now, expires=self.expires)
        except FormatError as error:
            there = [release.number for release in published.releases]
            others = ", ".join(str(number) for number in there if number != published.serving)
            remedy = f"use --to with one of: {others}" if others else None
            raise PublishError(str(error), remedy) from None

    def write(
        self, new: Published, put: Callable[[str, bytes], None], replace: Callable[[bytes], None]
    ) -> None:
        """Write a statement: its signature first, so that a reader never finds it without.

        Args:
            put: Writes a file.
            replace: Replaces ``published.json``.

        Raises:
            PublishError: If no reader would accept it.
        """
        try:
            content = statement(new)
        except StatementError as error:  # it is too long, or its numbers have come to their end
            raise _unusable(self.place, error) from None
        if self.signing.key is not None:
            if self.before is None and self._signer is not None:
                begin(self.place, self._signer)
            put(signature_path(content), sign_bytes(content, self.signing.key))
        replace(content)
        if self._signer is not None:
            digest = hashlib.sha256(content).hexdigest()
            remember(self.place, self._signer, Seen(new.line, new.sequence, digest))


@contextmanager
def changing(stated: Stated, signing: Signing, named: Signer | None = None) -> Iterator[Change]:
    """Yield a change to a place, based only on what the same key has signed.

    Where nothing was signed before, a signed line of releases begins: nobody vouches for what is
    there.

    Raises:
        DeploymentError: If it is to be unsigned where others are signed.
        SignatureError: If what is there is not what this key signed last.
    """
    now = datetime.now(timezone.utc).replace(microsecond=0)
    if signing.key is None:
        if signing.valid_for is not None:
            raise DeploymentError("--valid-for needs --sign KEY")
        if stated.signed:
            raise DeploymentError(
                f"{stated.place} is signed: unsigned, every server would refuse it", "--sign KEY"
            )
        yield Change(stated.place, stated.read(), now, None, signing)
        return
    with signer_of(signing.key, named) as signer:
        before = None
        signed = stated.signed or seen_at(stated.place, signer) is not None
        if signed and not stated.has_only_begun(signer):
            # One that has expired is renewed so.
            before = stated.verified(signer, _ALWAYS)
        expires = before.expires if before is not None else None
        if signing.valid_for is not None:
            expires = now + signing.valid_for
        elif expires is not None and expires <= now:
            cause = f"{stated.place}: its signature expired {as_time(expires)}"
            raise DeploymentError(cause, "say for how long the new one is accepted: --valid-for")
        yield Change(stated.place, before, now, expires, signing, signer)
