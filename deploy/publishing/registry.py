"""A registry: images for Docker and Kubernetes, .sif files for Apptainer (``oras://``).

A release has a tag of its own, with the first digits of its digest, under which it is pushed,
checked and signed. Then the tag that was asked for is pointed at it, in one write.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from deploy.artefacts.cosign import (
    PROVENANCE,
    SBOM,
    require_cosign,
    sign_image,
    signer_of,
    verify_image,
)
from deploy.artefacts.manifest import Artefact
from deploy.artefacts.reference import Reference
from deploy.artefacts.registry import Manifest, Registry
from deploy.artefacts.statements import provenance_of, sbom_of
from deploy.artefacts.tags import check_tag, next_signed, refuse_gone, verify_tag
from deploy.host.console import Console, Say, as_time
from deploy.host.errors import DeniedError, DeploymentError, PublishError, SignatureError
from deploy.publishing.audit import audit, size_of
from deploy.publishing.destination import InRegistry
from deploy.publishing.place import Entry, Listing, Look, Order, Outcome, Place, Signing


class RegistryPlace(Place):
    """A repository in a registry.

    Attributes:
        at: Its name, maybe with the tag that is used.
    """

    def __init__(self, destination: InRegistry) -> None:
        self.at = destination.reference
        self._destination = destination
        self.registry = Registry(self.at)

    def publish(self, order: Order, console: Console) -> Outcome:
        """Push what was built, sign it there, and point the tag at it."""
        if order.sandbox:
            raise DeploymentError("--sandbox is for a folder: a registry takes whole files")
        if order.with_code or order.valid_for is not None:
            raise DeploymentError(
                "--with-code and --valid-for are not for a registry", "leave them out"
            )
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
        """Push an artefact unless it is there, sign it, and point the tag at it.

        Args:
            folder: Where its statements are.
            default_tag: The tag, unless the destination names another.
        """
        tag = self.at.tag or default_tag
        if not artefact.sha256:
            line = f"would sign {artefact.name}, and push it to {self.at.name}:{tag}-DIGEST"
            return Outcome(False, tag, (line,))
        release = f"{tag}-{artefact.sha256.removeprefix('sha256:')[:12]}"
        there = self.registry.manifest(release)
        absent = there is None or not self._holds(there, artefact)
        current, place = self.registry.manifest(tag), replace(self.at, tag=tag)
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
        switch = current is None or current.digest != there.digest
        # An older image that the tag is to name again needs a newer signature, also if somebody
        # without the key has set it back already.
        sign = order.sign is not None and (switch or not self._is_signed(there, order, place))
        self._refuse_changed(place, current)
        with ExitStack() as held:
            signer = order.verify
            if order.sign is not None and sign:
                say("signing it, its SBOM and its provenance")
                signer = held.enter_context(signer_of(order.sign, order.verify))
                parts, provenance = folder / sbom_of(artefact), folder / provenance_of(artefact)
                named = self._named(current) if current is not None else None
                new = next_signed(place, named, self._releases(tag), signer)
                statements = {SBOM: parts, PROVENANCE: provenance}
                sign_image(self._named(there), order.sign, statements, new)
            if order.verify is not None:
                verify_image(self._named(there), order.verify)
            if signer is not None:
                check_tag(place, self._named(there), signer)
            if switch:
                self._refuse_changed(place, current)
                self.registry.tag(there.digest, tag)
            # Remembered now: if the tag cannot be moved, the older release is still its newest.
            if signer is not None:
                verify_tag(place, self._named(there), signer)
        done = [word for word, did in (("pushed", absent), ("signed", sign)) if did]
        lines = [f"{self.at.name}:{release}: {' and '.join(done) or 'is already there'}"]
        lines.append(f"{self.at.name}:{tag} {'now ' if switch else ''}names it: {there.digest}")
        signed = self._has_signature(there)
        if not signed:
            lines.append("not signed, and published without its SBOM (--sign KEY)")
        facts = {"reference": f"{self.at.name}@{there.digest}", "tag": tag, "signed": signed}
        return Outcome(absent or sign or switch, release, tuple(lines), facts)

    def _refuse_changed(self, place: Reference, before: Manifest | None) -> None:
        """Refuse to go on if a tag no longer names what it did: a push may take long."""
        now = self.registry.manifest(place.tag)
        if (now.digest if now else None) != (before.digest if before else None):
            raise PublishError(
                f"{place}: someone else has published there in the meantime",
                "look at it with numlkit published, and run the command again",
            )

    def listing(self, look: Look) -> Listing:
        """Return what the tag names, and whether it is signed; when checked, all releases."""
        if look.server is not None:
            raise DeploymentError(
                "--url: a server does not say which image it was started from", "leave it out"
            )
        if not self.at.tag:
            raise DeploymentError(f"{self._destination} names no tag", f"{self._destination}:TAG")
        if look.verify is not None:
            try:
                require_cosign()
            except SignatureError as error:  # which is not about what is there
                raise PublishError(error.cause, error.remedy) from None
        manifest = self.registry.manifest(self.at.tag)
        if manifest is None and look.verify is not None:
            refuse_gone(self.at, look.verify)
        used = self._used(manifest, look) if manifest is not None else Listing(())
        if not look.check:
            return used
        found = audit(self.registry, self.at, manifest, look.verify)
        damaged = {entry.what for entry in found.entries if entry.damaged}
        bad = manifest is not None and manifest.digest in damaged
        entries = tuple(replace(entry, damaged=bad) for entry in used.entries)
        return Listing(entries + found.entries, used.problems + found.problems, found.notes)

    def _used(self, manifest: Manifest, look: Look) -> Listing:
        """Return what the tag names."""
        problems, created = [], ""
        if look.verify is not None:
            reference = self._named(manifest)
            try:
                verify_image(reference, look.verify)
                found = verify_tag(self.at, reference, look.verify)
            except SignatureError as error:
                problems.append(error.cause)
                signed = "signature not accepted"
            else:
                signed = f"signed by {look.verify}"
                created = as_time(found.created) if found is not None else ""
        else:
            signed = "a signature is there" if self._has_signature(manifest) else "not signed"
        entry = Entry(
            release=self.at.tag,
            created=created,
            what=f"{manifest.digest}, {signed}",
            bytes=size_of(manifest),
            serving=True,
        )
        return Listing((entry,), tuple(problems))

    def rollback(self, to: str | None, signing: Signing, *, dry_run: bool) -> Outcome:
        """Refuse: a registry keeps no history."""
        raise DeploymentError(
            "rollback is for buckets and folders: start the older image by its digest",
            "helm rollback, or numlkit up --image HOST/REPOSITORY@DIGEST",
        )

    def check_prune(self, servers: tuple[str, ...]) -> NoReturn:
        """Refuse: retention is up to the registry."""
        raise DeploymentError(
            "--prune is for buckets and folders", "set a retention rule in the registry"
        )

    def prune(
        self, servers: tuple[str, ...], signing: Signing, console: Console, *, dry_run: bool
    ) -> Outcome:
        """Refuse, as :meth:`check_prune`."""
        self.check_prune(servers)

    def _is_signed(self, manifest: Manifest, order: Order, place: Reference | None = None) -> bool:
        """Return whether the key has signed it and the statements about it; as what a tag names."""
        assert order.sign is not None
        with signer_of(order.sign, order.verify) as signer:
            try:
                verify_image(self._named(manifest), signer)
                if place is not None:
                    verify_tag(place, self._named(manifest), signer)
            except SignatureError:
                return False
            return True

    def _named(self, manifest: Manifest) -> Reference:
        return replace(self.at, tag="", digest=manifest.digest)

    def _releases(self, tag: str) -> Iterator[Reference]:
        """Yield the releases that are there for a tag; none to a user who may not list them."""
        names: Iterable[str] = ()
        with suppress(DeniedError):
            names = self.registry.tags()
        for name in names:
            if re.fullmatch(rf"{re.escape(tag)}-[0-9a-f]{{12}}", name):
                found = self.registry.manifest(name)
                if found is not None:
                    yield self._named(found)

    def _has_signature(self, manifest: Manifest) -> bool:
        """Return whether there is something under cosign's tag for a signature."""
        tag = f"{manifest.digest.replace(':', '-')}.sig"
        return self.registry.manifest(tag) is not None
