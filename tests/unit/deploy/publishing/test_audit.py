"""What an audit finds in a registry, which is played; a real one is in tests/containers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest

from deploy.artefacts.reference import parse_reference
from deploy.artefacts.registry import Manifest, Registry
from deploy.host.errors import DamagedError
from deploy.publishing.audit import audit
from tests.releases import Blob
from tests.unit.deploy.artefacts import played as artefacts


def digest(part: str) -> str:
    return Blob(part.encode()).digest


class Played(artefacts.Registry):
    """A repository with two releases and their signatures."""

    def __init__(self) -> None:
        super().__init__([])
        self.document = None
        self.at = parse_reference(f"{self.name}:prod")
        for content in ("older", "newer"):
            self.push("prod", content)
        self.tags["other"] = self.tags["prod"]

    def push(self, tag: str, content: str) -> None:
        """Publish an image with a layer, and cosign's signature of it."""
        image = self.put(f"config of {content}", f"layer of {content}")
        self.tags[f"{tag}-{digest(f'config of {content}')[7:19]}"] = image
        self.tags[f"{image.replace(':', '-')}.sig"] = self.put("{}", f"signature of {content}")
        self.tags[tag] = image

    def put(self, *parts: str) -> str:
        self.blobs |= {digest(part): part.encode() for part in parts}
        config, *layers = ({"digest": digest(part), "size": len(part)} for part in parts)
        return self.put_manifest(json.dumps({"config": config, "layers": layers}))

    def put_manifest(self, document: str) -> str:
        self.manifests[digest(document)] = Blob(document.encode())
        return digest(document)

    def damage(self, content: str) -> None:
        self.blobs[digest(content)] = b"!" * len(content)

    def lose(self, content: str) -> None:
        del self.blobs[digest(content)]


@pytest.fixture
def played():
    with Played() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def found_in(played: Played) -> tuple[list[str], list[str], list[str]]:
    """Return the releases that are damaged, the problems and the notes."""
    registry = Registry(played.at)
    listing = audit(registry, played.at, registry.manifest("prod"), None)
    assert len(listing.entries) == 2
    return (
        [entry.release for entry in listing.entries if entry.damaged],
        list(listing.problems),
        list(listing.notes),
    )


OLDER, NEWER = (f"prod-{digest(f'config of {name}')[7:19]}" for name in ("older", "newer"))
NONSENSE = '{"config": {"digest": "../x"}}'
ENDLESS = f'{{"layers": [{{"digest": "{digest("layer of older")}", "size": 1e999}}]}}'


def test_whole_releases_and_their_signatures_are_no_problem(played):
    assert found_in(played) == ([], [], [])


@pytest.mark.parametrize(
    ("damage", "damaged", "problem"),
    [
        (lambda on: on.damage("layer of older"), [OLDER],
         f"{OLDER}: {digest('layer of older')} is missing or damaged"),
        (lambda on: on.lose("config of newer"), [NEWER],
         f"{NEWER}: {digest('config of newer')} is missing or damaged"),
        (lambda on: on.tags.update({OLDER: on.tags[NEWER]}), [OLDER],
         f"{OLDER}: it names something else than was published there"),
        (lambda on: on.tags.update({OLDER: on.put_manifest(NONSENSE)}), [OLDER],
         f"{OLDER}: its manifest is damaged"),
        (lambda on: on.tags.update({OLDER: on.put_manifest(ENDLESS)}), [OLDER],
         f"{OLDER}: its manifest is damaged"),
    ],
    ids=["a layer is changed", "a configuration is lost", "a tag is moved", "nonsense", "endless"],
)  # fmt: skip
def test_what_is_damaged_of_any_release_is_named(
    played, damage: Callable[[Played], None], damaged: list[str], problem: str
):
    damage(played)
    assert found_in(played) == (damaged, [problem], found_in(played)[2])


def test_a_damaged_signature_is_named(played):
    played.damage("signature of older")
    [problem] = found_in(played)[1]
    assert problem.startswith(f"{played.tags[OLDER].replace(':', '-')}.sig: sha256:")


def test_a_manifest_that_is_not_what_its_tag_names_is_named(played):
    played.manifests[played.tags[OLDER]] = Blob(b'{"layers": []}')
    registry = Registry(played.at)
    with pytest.raises(DamagedError, match=f"has a damaged manifest at {OLDER}"):
        registry.manifest(OLDER)
    listing = audit(registry, played.at, registry.manifest("prod"), None)
    assert listing.problems == (
        f"{OLDER}: registry {played.at.host} has a damaged manifest at {OLDER}",
    )


def test_a_tag_that_names_no_release_is_a_problem_and_what_others_pushed_is_noted(played):
    played.tags["mine"] = played.put("{}", "mine")
    assert found_in(played) == ([], [], [f"not published by the kit: {played.at.name}:mine"])
    played.tags["prod"] = played.tags["mine"]
    assert found_in(played)[1] == [f"prod names {played.tags['mine']}, which is no release"]
    del played.tags["prod"]
    assert found_in(played)[1] == ["prod names nothing"]


def test_lists_of_lists_are_read_once_however_deep(played, monkeypatch):
    def manifest(_: Registry, name: str) -> Manifest:
        asked.append(name)
        named = played.tags.get(name, name)
        return Manifest(named, json.loads(played.manifests[named].content))

    asked: list[str] = []
    monkeypatch.setattr(Registry, "manifest", manifest)  # without a request for each
    listed = played.tags[OLDER]
    for _ in range(40):
        parts = [{"digest": listed, "size": 1}] * 2
        listed = played.put_manifest(json.dumps({"manifests": parts}))
    played.tags[OLDER] = listed
    found_in(played)
    assert len(asked) < 100
    for _ in range(1000):
        listed = played.put_manifest(json.dumps({"manifests": [{"digest": listed, "size": 1}]}))
    played.tags[OLDER] = listed
    played.damage("layer of older")
    assert f"{OLDER}: {digest('layer of older')} is missing or damaged" in found_in(played)[1]
