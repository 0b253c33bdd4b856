"""What a build makes, keys to sign it, and a registry that somebody tampers with."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from deploy.artefacts.keys import Signer, read_signer
from deploy.artefacts.labels import Source
from deploy.artefacts.manifest import Artefact, Kind, record
from deploy.artefacts.request import BuildRequest
from deploy.artefacts.sbom import system_of_image
from deploy.artefacts.statements import Ingredients as Made
from deploy.artefacts.statements import write_checksums, write_statements
from deploy.host.files import sha256_of
from tests.containers.conftest import EPOCH, RELEASE
from tests.containers.failures.tiny import make_sif
from tests.kit import lacking

PASSWORD = "correct horse"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class Pair:
    """A key pair of cosign's."""

    private: Path
    public: Signer


def pair(folder: Path) -> Pair:
    """Make a key pair."""
    folder.mkdir()
    try:
        subprocess.run(
            ["cosign", "generate-key-pair"],
            cwd=folder,
            env={**os.environ, "COSIGN_PASSWORD": PASSWORD},
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        lacking("no cosign to test with: sudo scripts/install_container_tools --only cosign")
    return Pair(folder / "cosign.key", read_signer(folder / "cosign.pub"))


@pytest.fixture(scope="session", autouse=True)
def password():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COSIGN_PASSWORD", PASSWORD)
        yield


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    return pair(tmp_path_factory.mktemp("keys") / "ours")


@pytest.fixture(scope="session")
def others(tmp_path_factory):
    return pair(tmp_path_factory.mktemp("keys") / "others")


@dataclass(frozen=True)
class Dist:
    """A folder as a build leaves it: an image, which is in the engine, and a .sif.

    The .sif has a few kilobytes, and no models.
    """

    folder: Path
    image: Artefact
    sif: Artefact

    def take(self, sif: Path) -> None:
        """Put another .sif in the place of the small one."""
        shutil.copy(sif, self.folder / self.sif.name)
        record(self.folder, self.sif.model_copy(update={"sha256": sha256_of(sif)}))
        write_checksums(self.folder, self.sif)


@pytest.fixture(scope="session")
def dist(engine, ingredients, image, tmp_path_factory):
    """What is built is left as it is: tests that sign or change it take a copy."""
    folder = tmp_path_factory.mktemp("dist")
    environment, base = ingredients.environment, ingredients.base
    request = BuildRequest(
        targets=("image", "sif"), flavour=environment.flavour, base="slim", base_digest=None,
        triton=RELEASE, wheels=None, python=None, out=folder, wire=None, compressor="zstd",
    )  # fmt: skip
    system = system_of_image(engine, base.reference)
    source = Source("0123456789abcdef", EPOCH, "")
    facts: list[tuple[Kind, str, str]] = [
        ("image", image.tag, image.id),
        ("sif", request.sif.name, sha256_of(make_sif(request.sif))),
    ]
    made = []
    for kind, name, digest in facts:
        of = Made(kind, request, environment, source, base=(base, system))
        artefact = Artefact(
            kind=kind, name=name, bytes=1, sha256=digest, created=source.epoch, inputs=of.facts(),
            steps={},
        )  # fmt: skip
        write_statements(folder, artefact, of.parts(), of.build())
        record(folder, artefact)
        write_checksums(folder, artefact)
        made.append(artefact)
    return Dist(folder, *made)


@pytest.fixture
def copy(dist, tmp_path):
    """A copy of the folder."""
    shutil.copytree(dist.folder, tmp_path / "dist")
    return Dist(tmp_path / "dist", dist.image, dist.sif)


@dataclass(frozen=True)
class Tamperer:
    """Somebody who may write to a repository of the registry, and has no key."""

    url: str

    def manifest(self, tag: str) -> dict[str, Any]:
        answer = requests.get(f"{self.url}/manifests/{tag}", headers={"Accept": MANIFEST})
        return dict(answer.json())

    def put(self, tag: str, manifest: dict[str, Any]) -> None:
        requests.put(
            f"{self.url}/manifests/{tag}",
            data=json.dumps(manifest),
            headers={"Content-Type": manifest["mediaType"]},
        ).raise_for_status()

    def blob(self, digest: str) -> bytes:
        return requests.get(f"{self.url}/blobs/{digest}").content

    def upload(self, content: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        started = requests.post(f"{self.url}/blobs/uploads/")
        where = started.headers["Location"]
        answer = requests.put(f"{where}&digest={digest}", data=content)
        answer.raise_for_status()
        return digest

    def change_signature(self, digest: str) -> None:
        """Replace the signature of an image by another one of the right form."""
        tag = f"{digest.replace(':', '-')}.sig"
        manifest = self.manifest(tag)
        [layer] = manifest["layers"]
        name = "dev.cosignproject.cosign/signature"
        signature = bytearray(base64.b64decode(layer["annotations"][name]))
        signature[-1] ^= 1
        layer["annotations"][name] = base64.b64encode(signature).decode()
        self.put(tag, manifest)

    def change_statement(self, digest: str, old: bytes, new: bytes) -> None:
        """Write something else into the signed statements about an image."""
        tag = f"{digest.replace(':', '-')}.att"
        manifest = self.manifest(tag)
        for layer in manifest["layers"]:
            envelope = json.loads(self.blob(layer["digest"]))
            payload = base64.b64decode(envelope["payload"])
            if old in payload:
                envelope["payload"] = base64.b64encode(payload.replace(old, new)).decode()
                content = json.dumps(envelope).encode()
                layer |= {"digest": self.upload(content), "size": len(content)}
        self.put(tag, manifest)
