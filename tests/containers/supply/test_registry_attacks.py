"""An attacker who may write to a registry: what starts is what its owner signed last for the tag.

Images of a few bytes stand for the kit's; registry and cosign are real.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from deploy.artefacts.keys import Signer
from deploy.artefacts.manifest import Artefact
from deploy.artefacts.reference import Reference, parse_reference
from deploy.artefacts.registry import Manifest, Registry
from deploy.artefacts.statements import provenance_of, sbom_of
from deploy.deployment.deployment import Deployment
from deploy.engines import docker as docker_engine
from deploy.engines.container import ImageInUse
from deploy.engines.docker import DockerEngine
from deploy.engines.resolved import Resolved
from deploy.host.console import Console, Say
from deploy.host.errors import SignatureError
from deploy.publishing.destination import InRegistry
from deploy.publishing.place import Look, Order, Outcome
from deploy.publishing.registry import RegistryPlace
from tests.artefacts import artefact
from tests.containers.supply.conftest import MANIFEST, Tamperer
from tests.releases import Blob, push

QUIET = Console("quiet")
INDEX = "application/vnd.oci.image.index.v1+json"


def layer_of(content: str) -> Blob:
    return Blob(gzip.compress(content.encode(), mtime=0))


class Place(RegistryPlace):
    """Publishes a content of a few bytes."""

    def __init__(self, folder: Path, name: str, content: str) -> None:
        super().__init__(InRegistry("docker", parse_reference(name)))
        self.folder, self.content = folder, content
        at = self.at
        self.by = Repository(f"http://{at.host}/v2/{at.repository}")

    def _publish(self, order: Order, say: Say) -> Outcome:
        digest = layer_of(self.content).digest
        made = artefact("image", "n:t", digest)
        (self.folder / sbom_of(made)).write_text(json.dumps({"components": [self.content]}))
        said = {"predicate": {"buildDefinition": {"buildType": self.content}, "runDetails": {}}}
        (self.folder / provenance_of(made)).write_text(json.dumps(said))
        return self.bring(
            order, made, folder=self.folder, default_tag="t",
            push=lambda tag: self.by.push(tag, self.content), say=say,
        )  # fmt: skip

    def _holds(self, manifest: Manifest, artefact: Artefact) -> bool:
        return [layer["digest"] for layer in manifest.content["layers"]] == [artefact.sha256]


class Repository(Tamperer):
    """A repository, and who may write there."""

    def push(self, tag: str, content: str) -> None:
        host, _, repository = self.url.removeprefix("http://").partition("/v2/")
        push(host, repository, tag, [layer_of(content)], "")

    def raw(self, name: str) -> requests.Response:
        kinds = {"Accept": f"{MANIFEST}, {INDEX}"}
        return requests.get(f"{self.url}/manifests/{name}", headers=kinds)

    def digest(self, name: str) -> str:
        return self.raw(name).headers["Docker-Content-Digest"]

    def point(self, tag: str, name: str, of: Repository | None = None) -> None:
        """Have a tag name what another one names, perhaps in another repository."""
        found = (of or self).raw(name)
        found.raise_for_status()
        if of is not None:
            for part in (found.json()["config"], *found.json()["layers"]):
                self.upload(of.blob(part["digest"]))
        kind = {"Content-Type": found.headers["Content-Type"]}
        where = f"{self.url}/manifests/{tag}"
        requests.put(where, data=found.content, headers=kind).raise_for_status()

    def remove(self, tag: str) -> None:
        requests.delete(f"{self.url}/manifests/{self.digest(tag)}").raise_for_status()


@dataclass(frozen=True)
class Scene:
    """What the owner has published: two images for prod, one for test, one elsewhere."""

    at: Reference
    signer: Signer
    by: Repository
    elsewhere: Repository
    older: str
    newest: str
    test: str
    other: str

    def image(self, digest: str, suffix: str) -> str:
        """Return the tag under which cosign keeps something about an image."""
        return f"{digest.replace(':', '-')}.{suffix}"

    def copy(self, suffix: str, of: str, to: str, where: Repository | None = None) -> None:
        self.by.point(self.image(to, suffix), self.image(of, suffix), where)

    def evil(self, *attached: str) -> None:
        """Have the tag name another image, with what is attached to the owner's newest."""
        self.by.push("prod", "evil")
        for suffix in attached:
            self.copy(suffix, self.newest, self.by.digest("prod"))

    def from_elsewhere(self) -> None:
        """Have the tag name an image that was signed for this tag of another repository."""
        self.by.point("prod", "prod", self.elsewhere)
        for suffix in ("sig", "att"):
            self.copy(suffix, self.other, self.other, self.elsewhere)

    def index(self) -> None:
        """Have the tag name a list with the owner's image and another one."""
        self.by.push("evil", "evil")
        listed = []
        for name, system in ((self.newest, "amd64"), ("evil", "arm64")):
            found = self.by.raw(name)
            listed.append(
                {
                    "mediaType": MANIFEST,
                    "digest": found.headers["Docker-Content-Digest"],
                    "size": len(found.content),
                    "platform": {"os": "linux", "architecture": system},
                }
            )
        self.by.put("prod", {"schemaVersion": 2, "mediaType": INDEX, "manifests": listed})

    def payload(self) -> None:
        """Write a higher number into what is signed with the older image, and go back to it."""
        tag = self.image(self.older, "sig")
        manifest = self.by.manifest(tag)
        for layer in manifest["layers"]:
            said = json.loads(self.by.blob(layer["digest"]))
            said["optional"]["sequence"] = str(2**40)
            content = json.dumps(said).encode()
            layer |= {"digest": self.by.upload(content), "size": len(content)}
        self.by.put(tag, manifest)
        self.by.point("prod", self.older)

    def annotation(self) -> None:
        """The same where cosign puts annotations that nobody has signed."""
        tag = self.image(self.older, "sig")
        manifest = self.by.manifest(tag)
        for layer in manifest["layers"]:
            layer["annotations"] |= {"sequence": str(2**40), "tag": "prod"}
        self.by.put(tag, manifest)
        self.by.point("prod", self.older)


ATTACKS: dict[str, Callable[[Scene], object]] = {
    "another image": lambda on: on.evil(),
    "another image with the owner's signature": lambda on: on.evil("sig"),
    "another image with all that is attached": lambda on: on.evil("sig", "att"),
    "a list with the owner's image": Scene.index,
    "an older image": lambda on: on.by.point("prod", on.older),
    "an older image with a higher number": Scene.payload,
    "an older image with a number beside its signature": Scene.annotation,
    "an older image with the newest one's signature": lambda on: (
        on.by.point("prod", on.older),
        on.copy("sig", on.newest, on.older),
    ),
    "the image of another tag": lambda on: on.by.point("prod", on.test),
    "the image of another repository": Scene.from_elsewhere,
    "a changed signature": lambda on: on.by.change_signature(on.newest),
    "the signature of an older image": lambda on: on.copy("sig", on.older, on.newest),
    "no signature": lambda on: on.by.remove(on.image(on.newest, "sig")),
    "a changed list of parts": lambda on: on.by.change_statement(on.newest, b"newest", b"newesT"),
    "statements about an older image": lambda on: on.copy("att", on.older, on.newest),
    "no statements": lambda on: on.by.remove(on.image(on.newest, "att")),
    "no tag": lambda on: on.by.remove("prod"),
}


@pytest.fixture(scope="module")
def scene(registry, keys, tmp_path_factory):
    folder = tmp_path_factory.mktemp("registry-attacks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        name = f"{registry}/attacked/numl"
        digests = []
        for at, content in (
            (f"{name}:prod", "older"), (f"{name}:prod", "newest"), (f"{name}:test", "test"),
            (f"{name}-test:prod", "other"),
        ):  # fmt: skip
            place = Place(folder, at, content)
            place.publish(Order(Resolved(Deployment()), sign=keys.private), QUIET)
            digests.append(place.by.digest(place.at.tag))
        base = f"http://{registry}/v2/attacked/numl"
        at = parse_reference(f"{name}:prod")
        yield Scene(at, keys.public, Repository(base), Repository(f"{base}-test"), *digests)


@pytest.fixture
def attacked(scene, monkeypatch, tmp_path):
    """The same, on a host that has seen the newest image; afterwards it is mended."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    started(scene, scene.newest, monkeypatch)
    names = ["prod", *(t for t in Registry(scene.at).tags() if t.startswith("prod-"))]
    names += [scene.image(d, s) for d in (scene.older, scene.newest) for s in ("sig", "att")]
    before = {name: scene.by.manifest(name) for name in names}
    yield scene
    for name, manifest in before.items():
        scene.by.put(name, manifest)


def started(scene: Scene, digest: str, patch: pytest.MonkeyPatch) -> str:
    """Return the digest that ``up --verify`` of the tag starts, where a pull has brought one."""
    digests = {"RepoDigests": [f"{scene.at.name}@{digest}"]}
    images: Any = SimpleNamespace(get=lambda _: SimpleNamespace(attrs=digests))
    patch.setattr(docker_engine, "connect", lambda: SimpleNamespace(images=images, close=list))
    engine = DockerEngine(Resolved(Deployment(image=str(scene.at))))
    engine.__dict__["image"] = ImageInUse(str(scene.at), digest, {})
    named = engine.with_verified_image(scene.signer).deployment.image
    return parse_reference(str(named)).digest


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_the_owner_did_not_sign_last_for_the_tag_is_neither_started_nor_called_good(
    attacked, attack, tmp_path, monkeypatch
):
    ATTACKS[attack](attacked)
    place = Place(tmp_path, str(attacked.at), "")
    if attack == "no tag":
        with pytest.raises(SignatureError, match="is gone"):
            place.listing(Look(verify=attacked.signer))
        return
    with pytest.raises(SignatureError) as caught:
        started(attacked, attacked.by.digest("prod"), monkeypatch)
    assert "\n" not in caught.value.cause
    if attack == "a changed list of parts":
        assert caught.value.cause.startswith(f"its SBOM at {attacked.at.name}@{attacked.newest} is")
    assert place.listing(Look(verify=attacked.signer)).problems
    # By its digest the owner's image starts as before, unless what is attached to it was changed.
    if attacked.by.digest("prod") != attacked.newest:
        by_digest = replace(attacked, at=replace(attacked.at, tag="", digest=attacked.newest))
        assert started(by_digest, attacked.newest, monkeypatch) == attacked.newest


def test_what_is_signed_wrongly_is_not_published_until_it_is_signed_again(attacked, keys, tmp_path):
    attacked.by.change_signature(attacked.newest)
    place, order = Place(tmp_path, str(attacked.at), "newest"), Order(Resolved(Deployment()))
    with pytest.raises(SignatureError, match=r"is not what the owner of .* signed"):
        place.publish(replace(order, verify=attacked.signer), QUIET)
    again = place.publish(replace(order, sign=keys.private, verify=attacked.signer), QUIET)
    assert (again.changed, again.facts["signed"]) == (True, True)
    assert place.listing(Look(verify=attacked.signer)).problems == ()


def test_a_check_reads_every_byte_of_every_release_and_its_signature(
    scene, tmp_path, tmp_path_factory, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = Place(tmp_path, str(scene.at), "")
    look = Look(check=True, verify=scene.signer)
    found = place.listing(look)
    assert found.problems == ()
    assert {entry.what for entry in found.entries[1:]} == {scene.older, scene.newest, scene.test}
    [layer] = scene.by.manifest(scene.older)["layers"]
    digest = layer["digest"].removeprefix("sha256:")
    blob = f"registry*/data/docker/registry/v2/blobs/sha256/*/{digest}/data"
    [stored] = {path.resolve() for path in tmp_path_factory.getbasetemp().glob(blob)}
    content = stored.read_bytes()
    stored.write_bytes(b"!" * len(content))
    try:
        found = place.listing(look)
    finally:
        stored.write_bytes(content)
    [older] = (entry for entry in found.entries if entry.damaged)
    assert (older.what, older.serving) == (scene.older, False)
    assert found.problems == (f"{older.release}: sha256:{digest} is missing or damaged",)
