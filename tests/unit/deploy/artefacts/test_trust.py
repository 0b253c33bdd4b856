"""Release statements that are trusted: by their signature, and by what was seen before."""

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from deploy.artefacts.keys import Signer, read_signer
from deploy.artefacts.seen import memory_of
from deploy.artefacts.trust import is_published, trusted_in
from deploy.host.errors import SignatureError
from numl_formats.published import Image, Published, Release, published_release
from numl_formats.statement import NAME, statement
from numl_formats.trust import signature_path
from tests.keys import new_key, sign, write_key

NOW = datetime.now(timezone.utc).replace(microsecond=0)


@dataclass
class Publisher:
    """Signs statements of a folder with a key of its own."""

    place: Path
    key: ec.EllipticCurvePrivateKey
    signer: Signer
    published: Published | None = None

    def publish(self, sha256: str, *, form: str = "sif") -> Published:
        number = self.published.last + 1 if self.published is not None else 1
        image = Image(form, "numl.sif", sha256, 5)
        release = Release(number, NOW, "abc", image=image)
        new = published_release(self.published, release, created=NOW, expires=None)
        return self.write(new)

    def release(self, content: bytes) -> Published:
        """Publish a .sif of these bytes, to which the link leads from now on."""
        published = self.publish(hashlib.sha256(content).hexdigest())
        folder, link = self.place / str(published.last), self.place / "current"
        folder.mkdir()
        (folder / "numl.sif").write_bytes(content)
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)
        return published

    def write(self, published: Published, *, signed: bool = True) -> Published:
        self.published, content = published, statement(published)
        file = self.place / signature_path(content)
        file.parent.mkdir(exist_ok=True)
        if signed:
            file.write_bytes(sign(self.key, content) + b"\n")
        (self.place / NAME).write_bytes(content)
        return published


def make_publisher(folder: Path, name: str = "ours") -> Publisher:
    place, key = folder / "place", new_key()
    place.mkdir(exist_ok=True)
    return Publisher(place, key, read_signer(write_key(key, folder / f"{name}.pub")))


@pytest.fixture
def publisher(tmp_path):
    """One who has published a release."""
    found = make_publisher(tmp_path)
    found.publish("a" * 64)
    return found


def refused(publisher: Publisher, words: str, signer: Signer | None = None) -> None:
    with pytest.raises(SignatureError, match=re.escape(words)) as caught:
        trusted_in(publisher.place, signer or publisher.signer)
    assert "\n" not in caught.value.cause
    assert caught.value.remedy


def test_a_signed_statement_is_accepted_again_and_again_and_by_any_path(publisher, tmp_path):
    (tmp_path / "link").symlink_to(publisher.place)
    for path in (publisher.place, tmp_path / "link"):
        assert trusted_in(path, publisher.signer) == publisher.published
    assert len([*(tmp_path / "state").rglob("*.json")]) == 1


def test_a_place_whose_statement_was_removed_is_still_known_as_published(publisher):
    trusted_in(publisher.place, publisher.signer)
    (publisher.place / NAME).unlink()
    assert not is_published(publisher.place)
    assert is_published(publisher.place, publisher.signer)


def test_a_damaged_memory_is_no_reason_to_accept_an_older_one(publisher):
    trusted_in(publisher.place, publisher.signer)
    memory = memory_of(str(publisher.place.resolve()), publisher.signer)
    memory.write_text("{")
    refused(publisher, f"{memory} is damaged")


def test_a_key_of_another_kind_is_named(publisher, tmp_path):
    key = write_key(ec.generate_private_key(ec.SECP384R1()), tmp_path / "p384.pub")
    refused(publisher, "is not a key of cosign's", read_signer(key))
