"""A registry: images for Docker and Kubernetes, .sif files for Apptainer (``oras://``).

A release has a tag of its own, with the first digits of its digest, under which it is pushed,
checked and signed. The tag that was asked for names what serves; one write switches it. What served
before has that tag with ``-before``.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deploy.artefacts.cosign import (
    PROVENANCE,
    SBOM,
    require_cosign,
    sign_image,
    signer_of,
    verify_image,
)
from deploy.artefacts.image import OCI_LABELS
from deploy.artefacts.manifest import Artefact
from deploy.artefacts.reference import Reference
from deploy.artefacts.registry import Manifest, Registry
from deploy.artefacts.statements import provenance_of, sbom_of
from deploy.host.console import Console, Say
from deploy.host.errors import DeploymentError, PublishError, SignatureError
from deploy.publishing.destination import InRegistry
from deploy.publishing.place import Entry, Listing, Order, Outcome, Place, nothing_published

_RELEASE = re.compile(r"(?P<tag>.+)-[0-9a-f]{12}")
_BEFORE = "-before"
CREATED, REVISION = f"{OCI_LABELS}.created", f"{OCI_LABELS}.revision"


@dataclass(frozen=True)
class _Found:
    """A release in the registry."""

    tag: str
    manifest: Manifest
    created: str
    revision: str
    signed: bool


class RegistryPlace(Place):
    """A repository in a registry.

    Attributes:
        what: What it holds.
        at: Its name, maybe with the tag that serves.
    """

    what: str

    def __init__(self, destination: InRegistry) -> None:
        self.at = destination.reference
        self._destination = destination
        self.registry = Registry(self.at)

    def publish(self, order: Order, console: Console) -> Outcome:
        """Push what was built, sign it there, and point the tag at it."""
        if order.sandbox:
            raise DeploymentError("--sandbox is for a folder: a registry takes whole files")
        if order.sign is not None:
            require_cosign()
        with console.step("publish") as say:
            return self._publish(order, say)

    @abstractmethod
    def _publish(self, order: Order, say: Say) -> Outcome:
        """Verify what was ordered, then :meth:`bring` it."""

    @abstractmethod
    def _holds(self, manifest: Manifest, artefact: Artefact) -> bool:
        """Return whether a manifest is that of an artefact."""

    @abstractmethod
    def _facts(self, manifest: Manifest) -> dict[str, Any]:
        """Return the labels of a manifest's image or file."""

    def bring(
        self,
        order: Order,
        artefact: Artefact,
        *,
        folder: Path,
        default_tag: str,
        push: Callable[[str], None],
        say: Say,
    ) -> Outcome:
        """Push an artefact unless it is there, sign it unless it is signed, and switch to it.

        Args:
            folder: Where its statements are.
            default_tag: The tag that serves, unless the destination names another.
            push: Pushes it under a tag.
        """
        tag = self.at.tag or default_tag
        if not artefact.sha256:
            line = f"would sign {artefact.name}, and push it to {self.at.name}:{tag}-DIGEST"
            return Outcome(False, tag, (line,))
        release = f"{tag}-{artefact.sha256.removeprefix('sha256:')[:12]}"
        there = self.registry.manifest(release)
        absent = there is None or not self._holds(there, artefact)
        current = self.registry.manifest(tag)
        if order.dry_run:
            doing = "would push" if absent else "is already there:"
            lines = [f"{doing} {self.at.name}:{release}"]
            if order.sign is not None and (there is None or not self._is_signed(there, order)):
                lines.append("would sign it, its SBOM and its provenance")
            return Outcome(False, release, tuple(lines))
        if absent:
            push(release)
            there = self.registry.manifest(release)
        if there is None or not self._holds(there, artefact):
            raise PublishError(
                f"{self.at.name}:{release} is not what was pushed there",
                "someone else may have pushed at the same time; run the command again",
            )
        signed_now = order.sign is not None and not self._is_signed(there, order)
        if order.sign is not None and signed_now:
            say("signing it, its SBOM and its provenance")
            parts, provenance = folder / sbom_of(artefact), folder / provenance_of(artefact)
            statements = {SBOM: parts, PROVENANCE: provenance}
            sign_image(self._named(there), order.sign, statements)
        switch = current is None or current.digest != there.digest
        if switch:
            if current is not None:
                self.registry.tag(current.digest, f"{tag}{_BEFORE}")
            self.registry.tag(there.digest, tag)
        done = [word for word, did in (("pushed", absent), ("signed", signed_now)) if did]
        lines = [f"{self.at.name}:{release}: {' and '.join(done) or 'is already there'}"]
        lines.append(f"{self.at.name}:{tag} {'now ' if switch else ''}names it: {there.digest}")
        signed = _signature(there.digest) in self.registry.tags()
        if not signed:
            lines.append("not signed, and published without its SBOM (--sign KEY)")
        facts = {"reference": f"{self.at.name}@{there.digest}", "tag": tag, "signed": signed}
        return Outcome(absent or signed_now or switch, release, tuple(lines), facts)

    def listing(self, server: str | None) -> Listing:
        """Return the releases; the tag without a digest names what serves."""
        if server is not None:
            raise DeploymentError(
                "--url: a server does not say which image it was started from", "leave it out"
            )
        current, releases = self._current(), self._releases()
        ours = {found.manifest.digest for found in releases}
        problems = (
            f"{self.at.name}:{tag} names {digest}, which is not a release: publish or roll back"
            for tag, digest in current.items()
            if digest not in ours
        )
        entries = (
            Entry(
                release=found.tag,
                created=found.created,
                revision=found.revision,
                what=f"{self.what}, {'signed' if found.signed else 'not signed'}, "
                f"{found.manifest.digest}",
                bytes=sum(layer["size"] for layer in found.manifest.content["layers"]),
                serving=current.get(_plain(found.tag)) == found.manifest.digest,
            )
            for found in releases
        )
        return Listing(tuple(entries), tuple(problems))

    def rollback(self, to: str | None, *, dry_run: bool) -> Outcome:
        """Point the tag at an older release."""
        current, releases = self._current(), self._releases()
        if not releases:
            raise nothing_published(self._destination)
        tag = self.at.tag or (next(iter(current)) if len(current) == 1 else "")
        if not tag:
            raise PublishError(
                f"{self.at.name} has {len(current)} serving tags, not one",
                f"name it: {self._destination}:TAG",
            )
        own = [found for found in releases if _plain(found.tag) == tag]
        if to is None:
            # A registry keeps no times: of two builds of one commit neither looks older.
            before = self.registry.manifest(f"{tag}{_BEFORE}")
            there = before.digest if before is not None else ""
            chosen = [found for found in own if found.manifest.digest == there != current.get(tag)]
        else:
            chosen = [found for found in own if found.tag == to]
        if not chosen:
            names = ", ".join(found.tag for found in own) or "none is there"
            none = "no release is known to have served before" if to is None else f"no release {to}"
            raise PublishError(f"{self.at.name}:{tag}: {none}", f"--to with one of: {names}")
        release = chosen[0].tag
        if not dry_run:
            self.registry.tag(chosen[0].manifest.digest, tag)
        doing = "would name" if dry_run else "names"
        return Outcome(not dry_run, release, (f"{self.at.name}:{tag} {doing} {release}",))

    def prune(self, servers: tuple[str, ...], console: Console, *, dry_run: bool) -> Outcome:
        """Refuse: retention is up to the registry."""
        raise DeploymentError(
            "--prune is for buckets and folders", "set a retention rule in the registry"
        )

    def _is_signed(self, manifest: Manifest, order: Order) -> bool:
        """Return whether the expected signer has signed it and the statements about it."""
        assert order.sign is not None
        with signer_of(order.sign, order.verify) as signer:
            try:
                if signer is not None:
                    verify_image(self._named(manifest), signer)
            except SignatureError:
                return False
            return signer is not None

    def _named(self, manifest: Manifest) -> Reference:
        return replace(self.at, tag="", digest=manifest.digest)

    def _current(self) -> dict[str, str]:
        """Return the tags that serve, and the digests that they name."""
        plain = {_plain(tag) for tag in self.registry.tags() if _RELEASE.fullmatch(tag)}
        if self.at.tag:
            plain &= {self.at.tag}
        found = {tag: self.registry.manifest(tag) for tag in sorted(plain)}
        return {tag: manifest.digest for tag, manifest in found.items() if manifest is not None}

    def _releases(self) -> list[_Found]:
        found, tags = [], self.registry.tags()
        for tag in tags:
            if not _RELEASE.fullmatch(tag) or self.at.tag not in ("", _plain(tag)):
                continue
            manifest = self.registry.manifest(tag)
            if manifest is None or "layers" not in manifest.content:
                continue
            facts = self._facts(manifest)
            created, revision = str(facts.get(CREATED, "")), str(facts.get(REVISION, ""))
            signed = _signature(manifest.digest) in tags
            found.append(_Found(tag, manifest, created, revision, signed))
        return sorted(found, key=lambda one: (one.created, one.tag))


def _signature(digest: str) -> str:
    """Return cosign's tag for the signature of a digest."""
    return f"{digest.replace(':', '-')}.sig"


def _plain(tag: str) -> str:
    """Return the serving tag of a release's tag."""
    found = _RELEASE.fullmatch(tag)
    return found["tag"] if found is not None else tag
