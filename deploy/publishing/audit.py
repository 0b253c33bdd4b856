"""The releases in a repository of a registry, read byte by byte, and what else is there."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from deploy.artefacts.cosign import verify_image
from deploy.artefacts.keys import Signer
from deploy.artefacts.reference import Reference
from deploy.artefacts.registry import Manifest, Registry
from deploy.host.errors import PublishError, SignatureError
from deploy.publishing.place import Entry, Listing

_RELEASE = re.compile(r".+-([0-9a-f]{12})")
_COSIGN = re.compile(r"sha256-([0-9a-f]{64})(?:\.\w+)?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MALFORMED = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
_UNREADABLE = "its manifest is damaged"


def audit(
    registry: Registry, at: Reference, serving: Manifest | None, signer: Signer | None
) -> Listing:
    """Return all releases, what is wrong with them, and what the kit has not published.

    Args:
        at: The tag that is used.
        serving: What that names; None: nothing.
        signer: Who must have signed every release; None: anybody.
    """
    named, problems = _named(registry)
    releases = {tag: each for tag, each in named.items() if _RELEASE.fullmatch(tag)}
    digests = {each.digest for each in releases.values()}
    signatures = {tag: each for tag, each in named.items() if _is_about(tag, digests)}
    reader, damaged = _Reader(registry), set()
    for tag, manifest in (*releases.items(), *signatures.items()):
        wrong = list(reader.wrong_with(manifest))
        if not wrong and tag in releases and not _is_called(manifest, tag):
            wrong = ["it names something else than was published there"]
        if wrong:
            damaged.add(tag)
        problems += [f"{tag}: {each}" for each in wrong]
    if serving is not None and serving.digest not in digests:
        problems.append(f"{at.tag} names {serving.digest}, which is no release")
    if serving is None and at.tag in {tag.rpartition("-")[0] for tag in releases}:
        problems.append(f"{at.tag} names nothing")
    if signer is not None:
        problems += _unsigned(releases, at, signer)
    entries = tuple(
        Entry(release=tag, what=each.digest, bytes=size_of(each), damaged=tag in damaged)
        for tag, each in releases.items()
    )
    unknown = [
        tag
        for tag, each in named.items()
        if tag != at.tag and tag not in signatures and each.digest not in digests
    ]
    notes = tuple(f"not published by the kit: {at.name}:{tag}" for tag in unknown)
    return Listing(entries, tuple(problems), notes)


def _named(registry: Registry) -> tuple[dict[str, Manifest], list[str]]:
    """Return what each tag names, and which cannot be read."""
    named, problems = {}, []
    for tag in sorted(registry.tags()):
        try:
            manifest = registry.manifest(tag)
        except PublishError as error:
            problems.append(f"{tag}: {error.cause}")
            continue
        if manifest is not None:
            named[tag] = manifest
        else:
            problems.append(f"{tag}: {_UNREADABLE}")
    return named, problems


def _is_about(tag: str, digests: Collection[str]) -> bool:
    """Return whether cosign keeps something about one of these under a tag."""
    found = _COSIGN.fullmatch(tag)
    return found is not None and f"sha256:{found[1]}" in digests


def _is_called(manifest: Manifest, tag: str) -> bool:
    """Return whether a release's tag has the digest of what it names.

    An image is called by its manifest's digest or its configuration's, a .sif by its only layer's.
    """
    digits = tag.rpartition("-")[2]
    parts = [digest for digest, _ in _parts(manifest)]
    names = [manifest.digest, *(parts if len(parts) == 2 else parts[:1])]
    return any(name.startswith(f"sha256:{digits}") for name in names)


def _unsigned(releases: Mapping[str, Manifest], at: Reference, signer: Signer) -> Iterator[str]:
    for tag, manifest in releases.items():
        try:
            verify_image(replace(at, tag="", digest=manifest.digest), signer)
        except SignatureError as error:
            yield f"{tag}: {error.cause}"


class _Reader:
    """Reads each blob and each listed manifest of a repository once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._read: dict[str, str | None] = {}

    def wrong_with(self, manifest: Manifest) -> Iterator[str]:
        """Yield what is missing or damaged of an image, or of all images of a list."""
        # Others may have put lists of lists there, however many.
        waiting, seen = [manifest], {manifest.digest}
        while waiting:
            try:
                current = waiting.pop()
                parts = _parts(current)
                listed = [_digest(each) for each in current.content.get("manifests", ())]
            except _MALFORMED:
                yield _UNREADABLE
                continue
            for digest, size in parts:
                if digest not in self._read:
                    self._read[digest] = self._registry.sha256(digest, size)
                if self._read[digest] != digest:
                    yield f"{digest} is missing or damaged"
            for digest in listed:
                if digest in seen:
                    continue
                seen.add(digest)
                found = self._registry.manifest(digest)
                if found is None or found.digest != digest:
                    yield f"{digest} is missing or damaged"
                else:
                    waiting.append(found)


def _parts(manifest: Manifest) -> list[tuple[str, int]]:
    """Return digests and sizes of a manifest's configuration and layers."""
    content = manifest.content
    said = [*([content["config"]] if "config" in content else []), *content.get("layers", ())]
    return [(_digest(each), int(each["size"])) for each in said]


def size_of(manifest: Manifest) -> int:
    """Return how many bytes an image has in the registry; 0 if its manifest does not say."""
    try:
        return sum(size for _, size in _parts(manifest))
    except _MALFORMED:
        return 0


def _digest(said: Mapping[str, object]) -> str:
    digest = str(said["digest"])
    if _DIGEST.fullmatch(digest) is None:
        raise ValueError(digest)
    return digest
