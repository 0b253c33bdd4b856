"""Images and .sif files in a registry: published, signed, taken again."""

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import psutil
import pytest
from docker.errors import ImageNotFound

from deploy.artefacts.reference import Reference, parse_reference
from deploy.artefacts.sif_signature import verify_sif
from deploy.artefacts.statements import provenance_of, sbom_of, subjects
from deploy.commands import publish, published, rollback
from deploy.deployment.deployment import Deployment
from deploy.engines.docker import DockerEngine
from deploy.engines.resolved import Resolved
from deploy.host.errors import SignatureError
from deploy.host.files import sha256_of
from tests.containers.supply.conftest import Dist
from tests.kit import Kit

MB = 1_000_000


class Publisher:
    """Somebody who publishes from a folder, to one place."""

    def __init__(self, capsys: pytest.CaptureFixture[str], place: str, dist: Dist) -> None:
        self.capsys, self.place, self.dist = capsys, place, dist

    def __call__(self, *words: str | Path, command: Any = publish) -> dict[str, Any]:
        flags = ["--from", self.dist.folder] if command is publish else []
        status = command.main(["--json", *map(str, (self.place, *flags, *words))])
        said = self.capsys.readouterr()
        answer: dict[str, Any] = json.loads(said.out)
        return {**answer, "status": status}

    @property
    def releases(self) -> list[dict[str, Any]]:
        return list(self(command=published)["releases"])


@pytest.fixture
def image_publisher(registry, copy, image, engine, capsys, monkeypatch, request):
    """Publishes to a repository of its own; the engine forgets the names that it gave."""
    monkeypatch.setattr("deploy.publishing.built.image_name", lambda *_: image.tag)
    name = f"{registry}/lab/{abs(hash(request.node.name))}"
    yield Publisher(capsys, f"docker://{name}:prod", copy)
    for each in engine.images.list(name=name):
        for reference in (*each.tags, *each.attrs["RepoDigests"]):
            # With its last tag a name loses its digests, too.
            with suppress(ImageNotFound):
                if reference.startswith(name):
                    engine.images.remove(reference)


@pytest.fixture
def sif_publisher(registry, copy, capsys):
    return Publisher(capsys, f"oras://{registry}/lab/sif", copy)


@pytest.fixture
def unchecked(monkeypatch):
    """No models are asked before something is published."""
    monkeypatch.setattr("deploy.publishing.built.run", lambda *_, **__: None)


@pytest.fixture
def received(registry):
    """How many bytes the registry has read so far, from the network or its disk."""
    port = int(registry.rpartition(":")[2])
    [process] = [
        process
        for process in psutil.process_iter()
        if process.name() == "docker-registry"
        and port in {each.laddr.port for each in process.net_connections(kind="tcp")}
    ]
    return lambda: int(process.io_counters().read_chars)


def launch(reference: Reference) -> DockerEngine:
    return DockerEngine(Resolved(Deployment(image=str(reference))))


def test_an_image_is_published_by_digest_refused_until_it_is_signed_and_accepted_by_its_key_only(
    image_publisher, engine, image, keys, others, received
):
    first = image_publisher()
    assert (first["status"], first["changed"], first["tag"]) == (0, True, "prod")
    assert not first["signed"]
    [release] = image_publisher.releases
    digest = first["reference"].partition("@")[2]
    assert (release["release"], release["what"]) == ("prod", f"{digest}, not signed")
    words = ["--from", str(image_publisher.dist.folder), "--dry-run", "--sign", str(keys.private)]
    assert publish.main([image_publisher.place, *words]) == 0
    said = image_publisher.capsys.readouterr().out.splitlines()
    assert said[0].startswith("is already there: ")
    assert said[1:] == ["would sign it, its SBOM and its provenance"]
    reference = parse_reference(first["reference"])
    assert engine.images.list(name=reference.name) == []  # no name of it is left here
    assert engine.images.pull(first["reference"]).id == image.id
    with pytest.raises(SignatureError, match=r"is not signed$"):
        launch(reference).verified(keys.public)

    # Signed later, without being pushed again.
    signed = image_publisher("--sign", keys.private)
    assert (signed["changed"], signed["reference"]) == (True, first["reference"])
    [release] = image_publisher.releases
    assert release["what"] == f"{digest}, a signature is there"
    words = ("--verify", keys.public.path)
    [verified] = image_publisher(*words, command=published)["releases"]
    assert verified["what"] == f"{digest}, signed by {keys.public}"
    other = image_publisher("--verify", others.public.path, command=published)
    assert other["status"] == 1
    before = received()
    again = image_publisher("--sign", keys.private)
    assert received() - before < MB
    assert (again["changed"], again["reference"]) == (False, first["reference"])
    # What is started is what was verified, by its digest.
    engine_for, words = launch(reference).verified(keys.public)
    assert engine_for.deployment.image == first["reference"]
    assert engine_for.plan().contained.image == image.id
    assert first["reference"] in words
    with pytest.raises(SignatureError, match=r"is not what the owner of .* signed"):
        launch(reference).verified(others.public)


def test_an_image_of_no_registry_is_refused(engine, image, keys):
    container = engine.containers.create(image.tag)
    try:
        own = str(container.commit(changes="LABEL made=here").id)
    finally:
        container.remove()
    try:
        with pytest.raises(SignatureError, match="was not pulled from a registry"):
            DockerEngine(Resolved(Deployment(image=own))).verified(keys.public)
    finally:
        engine.images.remove(own)


def test_a_sif_comes_back_byte_for_byte_starts_with_its_key_and_older_ones_serve_again(
    sif_publisher, sif, keys, others, received, tmp_path
):
    copy = sif_publisher.dist
    copy.take(sif)
    unsigned = sif_publisher()
    assert unsigned["status"] == 0
    signed = sif_publisher("--sign", keys.private)
    assert signed["release"] != unsigned["release"]
    before = received()
    assert not sif_publisher("--sign", keys.private)["changed"]
    assert received() - before < MB
    place = f"{sif_publisher.place}:{signed['tag']}"
    pulled = tmp_path / "pulled.sif"
    pull = ["apptainer", "pull", "--no-https"]
    subprocess.run([*pull, pulled, place], check=True, capture_output=True)
    assert sha256_of(pulled) == sha256_of(copy.folder / copy.sif.name)
    assert sha256_of(pulled) in subjects((copy.folder / provenance_of(copy.sif)).read_text())

    kit = Kit(tmp_path / "state", "apptainer", str(pulled))
    try:
        refused = kit.json("up", "--name", "t", "--verify", str(others.public.path))
        assert refused["status"] == 1
        assert "is not what the owner of" in refused["error"]
        assert not kit.folder("t").exists()
        kit.up("t", "--verify", str(keys.public.path))
        smoke = ("smoke", "--name", "t", "--repeat", "1", "--verify")
        assert kit.json(*smoke, str(keys.public.path))["status"] == 0
        assert kit.json(*smoke, str(others.public.path))["status"] == 1
    finally:
        kit.close()

    refused = sif_publisher(command=rollback)
    assert (refused["status"], refused["remedy"]) == (
        2,
        "helm rollback, or numlkit up --image HOST/REPOSITORY@DIGEST",
    )


@pytest.mark.parametrize(
    ("step", "call"),
    [
        ("deploy.publishing.sifs.run", 1),  # Apptainer pushes it
        ("deploy.publishing.registry.sign_image", 1),
        ("deploy.artefacts.registry.Registry.tag", 1),
    ],
)
def test_a_publish_that_is_cut_off_leaves_the_old_release_and_the_next_one_goes_on(
    sif_publisher, unchecked, registry, keys, monkeypatch, step, call
):
    place = f"oras://{registry}/lab/{step.rpartition('.')[2].lower().replace('_', '-')}:prod"
    sif_publisher.place = place
    sif_publisher()
    [old] = sif_publisher.releases
    left = [call]
    module, _, name = step.rpartition(".")
    original = resolve_name(module)
    function = getattr(original, name)

    def cut_off(*words: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return function(*words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(original, name, cut_off)
        words = ["--from", str(sif_publisher.dist.folder), "--sign", str(keys.private)]
        assert publish.main([place, *words]) != 0
    sif_publisher.capsys.readouterr()
    assert sif_publisher.releases == [old]
    assert sif_publisher("--sign", keys.private)["changed"]
    [new] = sif_publisher.releases
    assert new["what"] != old["what"]
    assert new["what"].endswith("a signature is there")


def test_a_signed_sif_in_a_folder_has_its_parts_and_its_provenance_beside_it(
    copy, unchecked, keys, capsys, tmp_path
):
    place = tmp_path / "cvmfs"
    place.mkdir()
    publisher = Publisher(capsys, str(place), copy)
    assert publisher("--sign", keys.private)["status"] == 0
    verify_sif(place / "current" / "numl.sif", keys.public)
    statement = (place / "current" / provenance_of(copy.sif)).read_text()
    assert sha256_of(place / "current" / "numl.sif") in subjects(statement)
    assert (place / "current" / sbom_of(copy.sif)).is_file()
    assert not publisher("--sign", keys.private, "--verify", keys.public.path)["changed"]


def test_a_dry_run_that_is_to_sign_checks_the_key_and_changes_nothing(
    sif_publisher, unchecked, keys, others, capsys, tmp_path
):
    copy, place = sif_publisher.dist, sif_publisher.place
    before = {path: path.read_bytes() for path in copy.folder.iterdir()}

    def said(*words: str | Path, place: str = place) -> str:
        flags = ["--from", copy.folder, "--dry-run", "--sign", *words]
        publish.main([place, *map(str, flags)])
        return "".join(capsys.readouterr())

    tag = copy.sif.name.removeprefix("numl-").removesuffix(".sif")
    name = place.removeprefix("oras://")
    line = f"would sign {copy.sif.name}, and push it to {name}:{tag}-DIGEST\n"
    assert line in said(keys.private)
    folder = tmp_path / "cvmfs"
    folder.mkdir()
    assert ", once signed, as release 1" in said(keys.private, place=str(folder))
    assert "error: private key missing: no such file" in said("missing")
    mismatch = said(keys.private, "--verify", others.public.path)
    assert f"cosign.pub is not the public key of {keys.private}\n" in mismatch
    assert {path: path.read_bytes() for path in copy.folder.iterdir()} == before
    release = sif_publisher("--sign", keys.private)["release"]
    again = said(keys.private)
    assert again.startswith(f"is already there: {name}:{release}\n")
    assert "would sign" not in again


def test_a_list_of_parts_that_was_changed_is_neither_signed_nor_published(sif_publisher, keys):
    path = sif_publisher.dist.folder / sbom_of(sif_publisher.dist.sif)
    path.write_text(path.read_text().replace("1.26.4", "1.26.5"))
    for words in ([], ["--sign", keys.private]):
        refused = sif_publisher(*words)
        assert refused["status"] == 1
        assert refused["error"].endswith("is not what was built: SHA256SUMS has a different digest")


def test_one_that_does_not_give_its_reference_output_is_not_published(sif_publisher):
    sif_publisher.place += ":refused"
    before = sif_publisher.releases
    refused = sif_publisher()
    assert refused["status"] == 1
    assert "its own check fails" in refused["error"]
    assert sif_publisher.releases == before
