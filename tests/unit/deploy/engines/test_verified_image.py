"""Which images Docker starts for who verifies; the engine's and cosign's answers are given."""

import json
from types import SimpleNamespace

import pytest

from deploy.artefacts.keys import read_signer
from deploy.deployment.deployment import Deployment
from deploy.engines import docker
from deploy.engines.container import ImageInUse
from deploy.engines.docker import DockerEngine
from deploy.engines.resolved import Resolved
from deploy.host.errors import ModelError, SignatureError, UncheckedError
from tests.cosign import Cosign

NAME, MIRROR = "registry.example.org/lab/numl", "mirror.example.org/lab/numl"
DIGEST = f"sha256:{'ab' * 32}"


class Host:
    """A host with one image, as it was pulled."""

    def __init__(self, cosign: Cosign, patch: pytest.MonkeyPatch) -> None:
        self._cosign, self._names = cosign, [NAME]
        images = SimpleNamespace(get=lambda _: SimpleNamespace(attrs=self._attributes()))
        client = SimpleNamespace(images=images, close=lambda: None)
        patch.setattr(docker, "connect", lambda: client)

    def _attributes(self) -> dict[str, list[str]]:
        return {"RepoDigests": [f"{name}@{DIGEST}" for name in self._names]}

    def pull(self, sequence: int, *, also_at: str | None = None) -> None:
        """Have the image be the one that was signed with a number."""
        self._names = [NAME] if also_at is None else [also_at, NAME]
        said = {"line": "one", "sequence": str(sequence), "created": "2026-11-23T02:27:00Z"}
        said_of = [{"optional": {"tag": tag, **said}} for tag in ("prod", "latest")]
        self._cosign.answer(json.dumps(said_of))

    def up(self, asked: str) -> str | None:
        engine = DockerEngine(Resolved(Deployment(image=asked)))
        engine.__dict__["image"] = ImageInUse(asked, DIGEST, {})
        return engine.with_verified_image(read_signer(self._cosign.key)).deployment.image


@pytest.fixture
def cosign(tmp_path, monkeypatch):
    return Cosign.install(tmp_path / "bin", monkeypatch)


@pytest.fixture
def host(cosign, monkeypatch):
    return Host(cosign, monkeypatch)


@pytest.mark.parametrize("tag", [":prod", ""])
def test_a_tag_that_was_set_back_to_an_older_signed_image_is_not_started(host, tag):
    host.pull(5)
    assert host.up(f"{NAME}{tag}") == f"{NAME}@{DIGEST}"
    host.pull(4)
    with pytest.raises(SignatureError, match="names an older image than before"):
        host.up(f"{NAME}{tag}")
    host.pull(6)
    assert host.up(f"{NAME}{tag}") == f"{NAME}@{DIGEST}"


def test_a_signature_in_another_registry_does_not_help_a_tag_that_was_set_back(cosign, host):
    host.pull(5)
    host.up(f"{NAME}:prod")
    host.pull(4, also_at=MIRROR)
    cosign.refuse({f"{NAME}@{DIGEST}": "Error: no signatures found"})
    with pytest.raises(SignatureError, match="names an older image than before"):
        host.up(f"{NAME}:prod")


def test_who_names_a_digest_or_an_id_starts_that_image_however_old(host):
    host.pull(5)
    host.up(f"{NAME}:prod")
    host.pull(4)
    for asked in (f"{NAME}@{DIGEST}", DIGEST, f"{NAME}:prod@{DIGEST}"):
        assert host.up(asked) == f"{NAME}@{DIGEST}"


def test_what_is_left_out_is_left_out_of_a_verified_image_too(host, cosign):
    host.pull(5)
    left_out = Resolved(Deployment(image=NAME)).without(ModelError("nugraph3", "is broken", None))
    engine = DockerEngine(left_out)
    engine.__dict__["image"] = ImageInUse(NAME, DIGEST, {})
    verified = engine.with_verified_image(read_signer(cosign.key))
    assert verified.resolved.broken.keys() == {"nugraph3"}


def test_a_registry_that_is_away_does_not_keep_an_image_that_another_vouches_for(cosign, host):
    host.pull(5, also_at=MIRROR)
    cosign.refuse({f"{MIRROR}@{DIGEST}": "Error: dial tcp: no such host"})
    assert host.up(f"{MIRROR}:prod") == f"{NAME}@{DIGEST}"
    cosign.refuse({"verify": "Error: dial tcp: no such host"})
    with pytest.raises(UncheckedError, match="cannot check the signature"):
        host.up(f"{MIRROR}:prod")
