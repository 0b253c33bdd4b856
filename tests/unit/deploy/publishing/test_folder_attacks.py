"""An attacker who may write to a signed folder: what starts is what its owner signed last."""

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from deploy.artefacts.keys import Signer
from deploy.artefacts.labels import ENVIRONMENT_LABEL, FLAVOUR_LABEL, TRITON_LABEL
from deploy.deployment.deployment import Deployment
from deploy.deployment.state import DeploymentFolder
from deploy.engines import apptainer
from deploy.engines.apptainer import ApptainerEngine
from deploy.engines.kept import kept_at
from deploy.engines.resolved import Resolved
from deploy.host.errors import KitError, SignatureError
from deploy.publishing.folder import FolderPlace
from deploy.publishing.place import Look
from numl_formats.statement import LARGEST, NAME, statement
from numl_formats.trust import signature_path
from tests.unit.deploy.artefacts.test_trust import NOW, Publisher, make_publisher

BUILDS = (b"one..", b"two..", b"three")
EVIL = b"evil!"
LABELS = {ENVIRONMENT_LABEL: "x", FLAVOUR_LABEL: "serving", TRITON_LABEL: "24.10"}
# Nothing that is refused may take longer (s), or more room.
PATIENCE_S = 20
HUGE = 1 << 42


@dataclass
class Attacker:
    """Changes a folder in which the owner has published releases 1, 2 and 3, and knows no key."""

    owner: Publisher
    place: Path
    outside: Path
    statements: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def sif(self) -> Path:
        return self.place / "3" / "numl.sif"

    @property
    def signature(self) -> Path:
        return self.place / signature_path(self.statements[3])

    def put(self, path: Path, content: bytes = EVIL) -> None:
        self.remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def remove(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)

    def link(self, path: Path, to: Path | str) -> None:
        self.remove(path)
        path.symlink_to(to)

    def pipe(self, path: Path) -> None:
        self.remove(path)
        os.mkfifo(path)

    def folder(self, path: Path) -> None:
        self.remove(path)
        path.mkdir()

    def sparse(self, path: Path) -> None:
        with path.open("r+b") as stream:
            stream.truncate(HUGE)

    def say(self, content: bytes, signature: bytes | None = None) -> None:
        """Replace the statement; without a signature, put the newest one's beside it."""
        own = self.signature.read_bytes() if signature is None else signature
        (self.place / NAME).write_bytes(content)
        (self.place / signature_path(content)).write_bytes(own)

    def edit(self, **changes: Any) -> None:
        self.say(json.dumps(json.loads(self.statements[3]) | changes).encode())

    def own_release(self) -> None:
        said = json.loads(self.statements[3])
        said["releases"][-1]["image"]["sha256"] = hashlib.sha256(EVIL).hexdigest()
        self.put(self.sif)
        self.say(json.dumps(said).encode())

    def signed_by_owner(self, **changes: Any) -> None:
        """Put what the owner has signed for another place, or long ago."""
        self.owner.write(replace(self.owner.published, **changes))

    def older(self) -> None:
        self.say(self.statements[1], (self.place / signature_path(self.statements[1])).read_bytes())

    def sign_with_own_key(self) -> None:
        thief = make_publisher(self.outside, "thief")
        thief.place, thief.published = self.place, self.owner.published
        thief.write(thief.published)

    def format_1(self) -> None:
        """Pretend that a kit before signatures has published here."""
        self.remove(self.place / NAME)
        self.put(self.sif)
        record = {
            "number": 3, "created": "2026-11-24T00:00:00Z", "revision": "x", "form": "sif",
            "source": "numl.sif", "sha256": hashlib.sha256(EVIL).hexdigest(), "bytes": 5,
        }  # fmt: skip
        (self.place / "3" / "release.json").write_text(json.dumps(record))

    def older_build(self) -> Path:
        """A copy of a build that the owner has signed, in a folder that says nothing."""
        self.put(self.place / "x" / "y" / "numl.sif", b"one..")
        return self.place / "x" / "y"

    def older_place(self) -> Path:
        """A copy of the whole folder as it once was, signatures included."""
        there = self.outside / "copy"
        shutil.copytree(self.place, there, symlinks=True)
        (there / NAME).write_bytes(self.statements[1])
        return there

    def elsewhere(self) -> Path:
        """A folder of the attacker's with a release 3 of their own."""
        there = self.outside / "theirs"
        (there / "3").mkdir(parents=True)
        (there / "3" / "numl.sif").write_bytes(EVIL)
        shutil.copy(self.place / NAME, there)
        return there


Attack = Callable[[Attacker], object]
REFUSED: dict[str, Attack] = {
    "another image": lambda by: by.put(by.sif),
    "a longer image": lambda by: by.put(by.sif, b"three!"),
    "an empty image": lambda by: by.put(by.sif, b""),
    "no image": lambda by: by.remove(by.sif),
    "an image without end": lambda by: by.sparse(by.sif),
    "a link to another image": lambda by: by.link(by.sif, by.elsewhere() / "3" / "numl.sif"),
    "a link to an older build": lambda by: by.link(by.sif, by.older_build() / "numl.sif"),
    "a link to a device": lambda by: by.link(by.sif, "/dev/zero"),
    "a pipe for an image": lambda by: by.pipe(by.sif),
    "a folder for an image": lambda by: by.folder(by.sif),
    "a link to a release of their own": lambda by: by.link(by.sif.parent, by.elsewhere() / "3"),
    "no folder of the release": lambda by: by.remove(by.sif.parent),
    "an image of their own with its digest": lambda by: by.own_release(),
    "an older statement": lambda by: by.older(),
    "an older one, signed by the new one": lambda by: by.say(by.statements[1]),
    "a rollback of their own": lambda by: by.edit(serving=1, served=[1], sequence=9),
    "a higher number": lambda by: by.edit(sequence=9),
    "half a statement": lambda by: by.say(by.statements[3][:-100]),
    "an empty statement": lambda by: by.say(b""),
    "a deeply nested statement": lambda by: by.say(b'{"format": ' * 100_000),
    "a long statement": lambda by: by.say(b" " * LARGEST + by.statements[3]),
    "a statement without end": lambda by: by.sparse(by.place / NAME),
    "no statement": lambda by: by.remove(by.place / NAME),
    "a pipe for a statement": lambda by: by.pipe(by.place / NAME),
    "a device for a statement": lambda by: by.link(by.place / NAME, "/dev/zero"),
    "a folder for a statement": lambda by: by.folder(by.place / NAME),
    "records of before signatures": lambda by: by.format_1(),
    "no signature": lambda by: by.remove(by.signature),
    "no signatures": lambda by: by.remove(by.signature.parent),
    "an empty signature": lambda by: by.put(by.signature, b""),
    "a signature without end": lambda by: by.sparse(by.signature),
    "a pipe for a signature": lambda by: by.pipe(by.signature),
    "a device for a signature": lambda by: by.link(by.signature, "/dev/zero"),
    "a signature by another key": lambda by: by.sign_with_own_key(),
    "what was signed for another place": lambda by: by.signed_by_owner(line="0" * 16, sequence=9),
    "what has expired": lambda by: by.signed_by_owner(sequence=9, expires=NOW),
    "another one with the same number": lambda by: by.signed_by_owner(
        expires=NOW.replace(year=2099)
    ),
    "a sandbox": lambda by: by.owner.publish("0" * 64, form="sandbox"),
}
HARMLESS: dict[str, Attack] = {
    "the link at an older release": lambda by: by.link(by.place / "current", "1"),
    "the link at a release of their own": lambda by: by.link(
        by.place / "current", by.elsewhere() / "3"
    ),
    "the link at an older build": lambda by: by.link(by.place / "current", by.older_build()),
    "the link at the folder as it was": lambda by: by.link(by.place / "current", by.older_place()),
    "no link": lambda by: by.remove(by.place / "current"),
    "a newer release": lambda by: by.put(by.place / "4" / "numl.sif"),
    "records beside the statement": lambda by: by.put(by.place / "3" / "release.json", b"{"),
    "signatures of others": lambda by: by.put(by.place / "signatures" / f"{'0' * 64}.sig"),
}


@pytest.fixture
def attacker(home, monkeypatch):
    """One who comes when a node has started release 3, and its publisher has listed it."""
    monkeypatch.setattr(apptainer, "labels_of", lambda _: LABELS)
    monkeypatch.setattr("deploy.engines.apptainer.shutil.which", str)
    monkeypatch.setattr(apptainer, "verify_sif", verify_build)
    owner = make_publisher(home)
    (home / "outside").mkdir()
    by = Attacker(owner, owner.place, home / "outside")
    for number, content in enumerate(BUILDS, start=1):
        by.statements = {**by.statements, number: statement(owner.release(content))}
    assert started(by) == b"three"
    assert audited(by) == ()

    signal.signal(signal.SIGALRM, Mock(side_effect=AssertionError("it is waited for")))
    signal.alarm(PATIENCE_S)
    yield by
    signal.alarm(0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def verify_build(sif: Path, signer: Signer) -> None:
    """Accept what the owner has built and signed, whenever that was."""
    with sif.open("rb") as stream:
        if stream.read(8) not in BUILDS:
            raise SignatureError(f"{sif} is not signed with {signer}", "publish it with --sign")


def started(by: Attacker, named: str = "") -> bytes:
    """Return the image that ``up --verify`` of the folder keeps, to start it."""
    deployment = Deployment(engine="apptainer", image=str(by.place / named))
    engine = ApptainerEngine(Resolved(deployment)).with_verified_image(by.owner.signer)
    folder = DeploymentFolder("default")
    engine._keep(folder)
    return kept_at(folder.path, engine.image.digest).read_bytes()


def audited(by: Attacker) -> tuple[str, ...]:
    """Return what ``published --check --verify`` finds."""
    return FolderPlace(by.place).listing(Look(verify=by.owner.signer, check=True)).problems


@pytest.mark.parametrize("attack", REFUSED)
def test_what_the_owner_did_not_sign_last_is_neither_started_nor_called_good(attacker, attack):
    REFUSED[attack](attacker)
    kept = [*DeploymentFolder("default").path.iterdir()]
    for named in ("", "current/numl.sif", *(["3/numl.sif"] if attack != "a sandbox" else [])):
        with pytest.raises(KitError) as caught:
            started(attacker, named)
        assert "\n" not in caught.value.cause
        assert caught.value.remedy
    assert [*DeploymentFolder("default").path.iterdir()] == kept
    if attack == "a sandbox":  # which is signed, if not to be verified
        return
    with suppress(KitError):
        assert audited(attacker)


@pytest.mark.parametrize("attack", HARMLESS)
def test_what_the_statement_does_not_name_changes_nothing(attacker, attack):
    HARMLESS[attack](attacker)
    for named in ("", "current", "current/numl.sif", "3/numl.sif"):
        assert started(attacker, named) == b"three"
    audited(attacker)


def test_signatures_that_a_link_leads_to_are_not_removed(attacker):
    theirs = attacker.outside / "signatures"
    attacker.signature.parent.rename(theirs)
    attacker.link(attacker.place / "signatures", theirs)
    before = sorted(theirs.iterdir())
    FolderPlace(attacker.place)._remove_signatures()
    assert sorted(theirs.iterdir()) == before
    attacker.remove(attacker.place / "signatures")
    theirs.rename(attacker.place / "signatures")
    FolderPlace(attacker.place)._remove_signatures()
    assert [*(attacker.place / "signatures").iterdir()] == [attacker.signature]
