"""A tag in a registry: what it is pointed at, and when.

The registry is a dictionary and cosign's answers are given: real ones are in tests/containers.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from unittest.mock import Mock

import pytest
from docker.errors import DockerException

from deploy.artefacts.cosign import Signed
from deploy.artefacts.keys import Signer
from deploy.artefacts.manifest import Artefact
from deploy.artefacts.reference import Reference, parse_reference
from deploy.artefacts.registry import Manifest, Registry
from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.host.console import Console, Say
from deploy.host.errors import DeploymentError, PublishError, SignatureError
from deploy.publishing import registry
from deploy.publishing.destination import InRegistry
from deploy.publishing.images import ImagePlace
from deploy.publishing.place import Look, Order, Outcome, Signing
from deploy.publishing.registry import RegistryPlace
from tests.artefacts import artefact
from tests.cosign import Cosign

KEY, SIGNER = Path("cosign.key"), Signer(Path("cosign.pub"), "pem")
QUIET = Console("quiet")


class Tags:
    """A repository: what each tag names."""

    def __init__(self) -> None:
        self.named: dict[str, str] = {}

    def manifest(self, name: str) -> Manifest | None:
        digest = self.named.get(name)
        return Manifest(digest, {"layers": [{"size": 5}]}) if digest is not None else None

    def tags(self) -> list[str]:
        return list(self.named)

    def tag(self, name: str, tag: str) -> None:
        self.named[tag] = name


class Place(RegistryPlace):
    """Publishes an artefact whose digest in the registry is its own."""

    def __init__(self, registry: Tags) -> None:
        super().__init__(InRegistry("docker", parse_reference("r.example.org/lab/numl:prod")))
        self.registry = registry
        self.artefact = ""

    def _publish(self, order: Order, say: Say) -> Outcome:
        return self.bring(
            order,
            artefact("image", "n:t", self.artefact),
            folder=Path(),
            default_tag="t",
            push=lambda tag: self.registry.tag(self.artefact, tag),
            say=say,
        )

    def _holds(self, manifest: Manifest, artefact: Artefact) -> bool:
        return manifest.digest == artefact.sha256


class Signatures:
    """What is signed, and what no longer holds."""

    def __init__(self) -> None:
        self.signed: dict[str, list[Signed]] = {}
        self.tampered: set[str] = set()

    def sign(self, at: Reference, _: Path, __: Mapping[str, Path], signed: Signed) -> None:
        self.signed.setdefault(at.digest, []).append(signed)
        self.tampered.discard(at.digest)

    def verify(self, at: Reference, _: Signer) -> None:
        if at.digest not in self.signed:
            raise SignatureError(f"{at} is not signed")
        if at.digest in self.tampered:
            raise SignatureError(f"{at} is not what was signed")

    def all(self, at: Reference, signer: Signer) -> tuple[Signed, ...]:
        self.verify(at, signer)
        return tuple(self.signed[at.digest])


@pytest.fixture
def signatures(monkeypatch, home):
    @contextmanager
    def signer_of(_: Path, __: Signer | None) -> Iterator[Signer]:
        yield SIGNER

    Cosign.install(home / "bin", monkeypatch)
    monkeypatch.chdir(home / "bin")  # where cosign.pub is
    found = Signatures()
    where = "deploy.publishing.registry"
    monkeypatch.setattr(f"{where}.require_cosign", str)
    monkeypatch.setattr(f"{where}.signer_of", signer_of)
    monkeypatch.setattr(f"{where}.sign_image", found.sign)
    monkeypatch.setattr(f"{where}.verify_image", found.verify)
    monkeypatch.setattr("deploy.artefacts.tags.signed_of", found.all)
    return found


Publish = Callable[..., Outcome]


@pytest.fixture
def tags():
    return Tags()


@pytest.fixture
def publish(tags):
    def run(name: str, sign: Path | None = None, verify: Signer | None = None) -> Outcome:
        place = Place(tags)
        place.artefact = f"sha256:{name * 64}"
        return place.publish(Order(Resolved(Deployment()), sign=sign, verify=verify), QUIET)

    return run


def test_a_tag_is_not_pointed_at_what_the_key_has_not_signed(tags, signatures, publish):
    publish("a", KEY)
    with pytest.raises(SignatureError, match=r"is not signed$"):
        publish("b", None, SIGNER)
    assert tags.named["prod"] == f"sha256:{'a' * 64}"
    signatures.tampered.add(tags.named["prod"])
    with pytest.raises(SignatureError, match="is not what was signed"):
        publish("a", None, SIGNER)
    assert publish("a", KEY, SIGNER).changed
    assert not publish("a", None, SIGNER).changed


@pytest.mark.parametrize("meanwhile", ["push", "sign"])
def test_what_somebody_else_has_published_meanwhile_is_not_replaced(
    tags, signatures, publish, monkeypatch, meanwhile
):
    publish("a", KEY)
    newer = f"sha256:{'c' * 64}"
    where, act = (tags, "tag") if meanwhile == "push" else (registry, "sign_image")
    before = getattr(where, act)

    def during(*words: object) -> None:
        before(*words)
        tags.named["prod"] = newer

    monkeypatch.setattr(where, act, during)
    with pytest.raises(PublishError, match=r"numl:prod: someone else has published") as raised:
        publish("b", KEY)
    assert "run the command again" in (raised.value.remedy or "")
    assert tags.named["prod"] == newer
    assert (f"sha256:{'b' * 64}" in signatures.signed) == (meanwhile == "sign")


def test_the_number_that_is_signed_grows_also_for_an_older_image(tags, signatures, publish):
    newest = []
    for name in ("a", "b", "a"):
        publish(name, KEY)
        newest.append(signatures.signed[tags.named["prod"]][-1])
    numbers = [each.sequence for each in newest]
    assert numbers == sorted(set(numbers))
    assert {(each.tag, each.line) for each in newest} == {("prod", newest[0].line)}
    assert not publish("a", KEY).changed
    # A clock that was set back does not set the number back.
    later = Signed("prod", newest[0].line, 2**40, datetime(2026, 11, 23, tzinfo=timezone.utc))
    signatures.signed[tags.named["prod"]].append(later)
    publish("b", KEY)
    assert signatures.signed[tags.named["prod"]][-1].sequence == 2**40 + 1


def test_what_a_tag_names_is_shown_and_its_signature_checked_only_with_a_key(
    tags, signatures, publish
):
    place, digest = Place(tags), f"sha256:{'a' * 64}"
    assert place.listing(Look()).entries == ()
    publish("a")
    assert place.listing(Look()).entries[0].what == f"{digest}, not signed"
    publish("a", KEY)
    tags.named[f"{digest.replace(':', '-')}.sig"] = "sha256:0"
    assert place.listing(Look()).entries[0].what == f"{digest}, a signature is there"
    verified = place.listing(Look(verify=SIGNER))
    assert verified.problems == ()
    assert verified.entries[0].what == f"{digest}, signed by the owner of cosign.pub"
    signatures.tampered.add(digest)
    assert place.listing(Look(verify=SIGNER)).problems


def test_without_cosign_nothing_is_said_of_what_is_there(tags, publish, monkeypatch, tmp_path):
    publish("a")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PublishError, match="which signs and verifies, is not installed") as raised:
        Place(tags).listing(Look(verify=SIGNER))
    assert "install_container_tools" in (raised.value.remedy or "")


@pytest.mark.parametrize("layers", [None, [{}], "x"])
def test_a_manifest_that_makes_no_sense_is_listed(tags, monkeypatch, layers):
    manifest = Manifest("sha256:0", {"layers": layers})
    monkeypatch.setattr(tags, "manifest", lambda name: manifest if name == "prod" else None)
    [entry] = Place(tags).listing(Look()).entries
    assert (entry.what, entry.bytes) == ("sha256:0, not signed", 0)


def test_a_tag_that_was_set_back_is_told_and_only_a_new_signature_goes_back(
    tags, signatures, publish
):
    older, place = f"sha256:{'a' * 64}", Place(tags)
    for name in ("a", "b"):
        publish(name, KEY, SIGNER)
    newer = tags.named["prod"]
    with pytest.raises(SignatureError, match="names an older image than before"):
        publish("a", None, SIGNER)
    assert tags.named["prod"] == newer
    tags.named["prod"] = older
    assert "names an older image than before" in place.listing(Look(verify=SIGNER)).problems[0]
    assert publish("a", KEY, SIGNER).changed
    assert tags.named["prod"] == older
    assert place.listing(Look(verify=SIGNER)).problems == ()


@pytest.mark.parametrize("left", ["c", None])
def test_a_host_without_memory_signs_in_the_line_of_the_tags_releases(
    tags, signatures, publish, monkeypatch, tmp_path, left
):
    for name in ("a", "b"):
        publish(name, KEY)
    if left is not None:  # by somebody without the key
        publish(left)
    else:
        del tags.named["prod"]
    with monkeypatch.context() as runner:
        runner.setenv("XDG_STATE_HOME", str(tmp_path / "runner"))
        publish("d", KEY)
    assert Place(tags).listing(Look(verify=SIGNER)).problems == ()


def test_a_publish_that_cannot_move_the_tag_leaves_the_old_release_accepted(
    tags, signatures, publish, monkeypatch
):
    def refuse(name: str, tag: str) -> None:
        if tag == "prod":
            raise PublishError("registry r.example.org answers 409")
        moved(name, tag)

    place, moved = Place(tags), tags.tag
    publish("a", KEY)
    with monkeypatch.context() as patch:
        patch.setattr(tags, "tag", refuse)
        # Signed by the first one, which the second finds.
        for key, verify in ((KEY, None), (None, SIGNER)):
            with pytest.raises(PublishError, match="answers 409"):
                publish("b", key, verify)
            assert place.listing(Look(verify=SIGNER)).problems == ()
    publish("b", KEY)
    tags.named["prod"] = f"sha256:{'a' * 64}"
    assert "names an older image than before" in place.listing(Look(verify=SIGNER)).problems[0]


def test_credentials_that_docker_cannot_read_are_told_in_a_line():
    client = Mock()
    client.images.get.return_value.tags = []
    client.images.push.side_effect = DockerException("Credentials store error: no helper")
    place = ImagePlace(InRegistry("docker", parse_reference("r.example.org/lab/numl")))
    cause = "cannot push r.example.org/lab/numl:t: Credentials store error: no helper"
    with pytest.raises(PublishError, match=f"^{cause}$"):
        place._push(client, "sha256:0", "t", lambda _: None)
    client.images.remove.assert_called_once_with("r.example.org/lab/numl:t", noprune=True)


def test_a_registry_keeps_no_history(tags):
    place = Place(tags)
    for ask in (
        lambda: place.rollback(None, Signing(), dry_run=False),
        lambda: place.prune((), Signing(), QUIET, dry_run=False),
        lambda: place.publish(Order(Resolved(Deployment()), with_code=True), QUIET),
        lambda: place.listing(Look(server="http://x")),
    ):
        with pytest.raises(DeploymentError) as raised:
            ask()
        assert raised.value.remedy


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("docker.io/lab/numl", "https://registry-1.docker.io/v2/lab/numl"),
        ("r.example.org/lab/numl", "https://r.example.org/v2/lab/numl"),
        ("127.0.0.1:5000/lab/numl", "http://127.0.0.1:5000/v2/lab/numl"),
    ],
)
def test_docker_hub_is_asked_where_it_answers(name, url):
    assert Registry(parse_reference(name))._url == url
