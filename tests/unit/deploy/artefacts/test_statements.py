"""What is written beside an artefact: its SBOM, its provenance, the checksums."""

import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.artefacts.image import BaseImage
from deploy.artefacts.labels import Source
from deploy.artefacts.manifest import Artefact, record
from deploy.artefacts.request import BuildRequest
from deploy.artefacts.sbom import (
    Component,
    Package,
    System,
    of_base,
    of_triton,
    sbom,
    system_of_tree,
)
from deploy.artefacts.site import SiteContent
from deploy.artefacts.statements import (
    CHECKSUMS,
    SIGNATURE,
    Build,
    Ingredients,
    resource,
    sbom_of,
    statement,
    write_checksums,
    write_statements,
)
from deploy.host.errors import BuildError
from deploy.triton.release import find_release
from deploy.triton.stage import StagedModel
from tests.artefacts import artefact

COMMIT = "a" * 40
BUILD = Build(
    source=Source(COMMIT, 0, "https://example.org/kit"),
    parameters={"target": "sif"},
    inputs=[resource("lock", "1" * 64), resource("base", "", "debian:12")],
    tools={"pip": "26"},
)
PARTS = (
    Component("library", "numpy", "1.26.4", "pkg:pypi/numpy@1.26.4", "2" * 64),
    Component("file", "lib/libz.so.1", sha256="3" * 64),
    Component("library", "own", "1", "pkg:generic/own@1", facts=(("sources", "4"),)),
)
STATUS = """\
Package: libstdc++6
Status: install ok installed
Architecture: amd64
Version: 1:12.2.0-14+deb12u1
Description: a library
 of two lines

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1
"""


def test_the_parts_are_listed_in_their_order_whatever_the_order_they_came_in():
    text = sbom("container", "numl.sif", PARTS, epoch=0)
    assert text == sbom("container", "numl.sif", (*reversed(PARTS), PARTS[0]), epoch=0)
    found = json.loads(text)
    serial = found.pop("serialNumber")
    assert serial.startswith("urn:uuid:")
    another = json.loads(sbom("container", "numl.sif", PARTS[:-1], epoch=0))
    assert another["serialNumber"] != serial
    tool = {"type": "application", "name": "numlkit", "version": "0.1.0"}
    assert found == {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": "1970-01-01T00:00:00+00:00",
            "tools": {"components": [tool]},
            "component": {"type": "container", "bom-ref": "numl.sif", "name": "numl.sif"},
        },
        "components": [
            {
                "type": "file",
                "bom-ref": "part-1",
                "name": "lib/libz.so.1",
                "hashes": [{"alg": "SHA-256", "content": "3" * 64}],
            },
            {
                "type": "library",
                "bom-ref": "pkg:generic/own@1",
                "name": "own",
                "version": "1",
                "purl": "pkg:generic/own@1",
                "properties": [{"name": "numlkit:sources", "value": "4"}],
            },
            {
                "type": "library",
                "bom-ref": "pkg:pypi/numpy@1.26.4",
                "name": "numpy",
                "version": "1.26.4",
                "purl": "pkg:pypi/numpy@1.26.4",
                "hashes": [{"alg": "SHA-256", "content": "2" * 64}],
            },
        ],
        "dependencies": [
            {
                "ref": "numl.sif",
                "dependsOn": ["part-1", "pkg:generic/own@1", "pkg:pypi/numpy@1.26.4"],
            }
        ],
    }


def test_one_version_in_two_files_is_two_parts_by_names_of_their_own():
    numpy = Component("library", "numpy", "1.26.4", "pkg:pypi/numpy@1.26.4", "2" * 64)
    found = json.loads(sbom("container", "x", (*PARTS, replace(numpy, sha256="5" * 64)), epoch=0))
    names = [each["bom-ref"] for each in found["components"]]
    assert names == ["part-1", "pkg:generic/own@1", "part-3", "part-4"]
    assert found["dependencies"] == [{"ref": "x", "dependsOn": names}]


def test_the_installed_packages_of_a_base_are_named_as_their_distribution_names_them(tmp_path):
    with pytest.raises(BuildError, match=r"^the base image has no /usr/lib/os-release"):
        system_of_tree(tmp_path)
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/os-release").write_text('NAME="Debian"\nID=debian\nVERSION_ID="12"\n')
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(STATUS)
    system = system_of_tree(tmp_path)
    assert system == System(
        "debian", "12", (Package("libstdc++6", "1:12.2.0-14+deb12u1", "amd64"),)
    )
    base = BaseImage("r", "docker.io/library/debian:bookworm-slim", f"sha256:{'5' * 64}")
    image, distribution, package = of_base(base, system)
    assert (image.name, image.version, image.sha256) == (
        "docker.io/library/debian", "bookworm-slim", "5" * 64,
    )  # fmt: skip
    assert (distribution.name, distribution.version) == ("debian", "12")
    assert package.purl == (
        "pkg:deb/debian/libstdc%2B%2B6@1:12.2.0-14%2Bdeb12u1?arch=amd64&distro=debian-12"
    )


def test_triton_is_the_wheel_that_it_comes_from():
    release = find_release("24.10")
    triton = of_triton(release)
    assert triton.purl == "pkg:pypi/nvidia-pytriton@0.7.0"
    assert triton.sha256 == release.wheel.sha256
    assert dict(triton.facts) == {"tritonserver": "2.51.0", "release": "24.10"}


def test_the_provenance_is_a_statement_of_in_toto():
    parts = resource("numl.cdx.json", "7" * 64)
    text = statement(BUILD, subject=resource("numl.sif", "6" * 64), sbom=parts)
    assert json.loads(text) == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "numl.sif", "digest": {"sha256": "6" * 64}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:numlkit:build:v1",
                "externalParameters": {"target": "sif"},
                "resolvedDependencies": [
                    {
                        "uri": f"git+https://example.org/kit@{COMMIT}",
                        "name": "source",
                        "digest": {"gitCommit": COMMIT},
                        "annotations": {"tree": "clean"},
                    },
                    {"name": "lock", "digest": {"sha256": "1" * 64}},
                    {"uri": "debian:12", "name": "base"},
                ],
            },
            "runDetails": {
                "builder": {
                    "id": "urn:numlkit:builder",
                    "version": {"numlkit": "0.1.0", "pip": "26"},
                },
                "byproducts": [{"name": "numl.cdx.json", "digest": {"sha256": "7" * 64}}],
            },
        },
    }


@pytest.mark.parametrize(("revision", "source"), [
    (f"{COMMIT}-dirty", {"digest": {"gitCommit": COMMIT}, "annotations": {"tree": "modified"}}),
    ("unknown", {"annotations": {"tree": "no git checkout"}}),
])  # fmt: skip
def test_a_tree_that_is_no_commit_is_said_to_be_none(revision, source):
    build = Build(Source(revision, 0, ""), {}, [], {})
    text = statement(build, subject=resource("a", "1"), sbom=resource("b", "2"))
    found = json.loads(text)["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert found == [{"name": "source", **source}]


def made(folder: Path, kind: str, name: str, content: bytes) -> Artefact:
    """Record an artefact with its statements; that of an image is in no file."""
    if kind != "image":
        (folder / name).write_bytes(content)
    built = artefact(kind, name, hashlib.sha256(content).hexdigest())
    write_statements(folder, built, PARTS, BUILD)
    record(folder, built)
    return built


def test_the_checksums_are_those_of_all_that_lies_there(tmp_path):
    made(tmp_path, "sif", "numl.sif", b"1")
    write_checksums(tmp_path, made(tmp_path, "image", "numlkit/numl:24.10", b"2"))
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"{name}: OK"
        for name in (
            "numl-24.10.image.cdx.json",
            "numl-24.10.image.provenance.json",
            "numl.sif",
            "numl.sif.cdx.json",
            "numl.sif.provenance.json",
        )
    ]


def test_checksums_change_only_with_what_was_built_and_a_signature_only_with_them(tmp_path):
    image = made(tmp_path, "image", "numlkit/numl:24.10", b"1")
    sif = made(tmp_path, "sif", "numl.sif", b"2")
    write_checksums(tmp_path, sif)
    listed = (tmp_path / CHECKSUMS).read_text()
    (tmp_path / SIGNATURE).touch()
    (tmp_path / sbom_of(sif)).write_text("changed")
    record(tmp_path, sif.model_copy(update={"sha256": "0" * 64}))
    write_checksums(tmp_path, image)
    assert (tmp_path / CHECKSUMS).read_text() == listed
    assert (tmp_path / SIGNATURE).exists()
    write_checksums(tmp_path, made(tmp_path, "sif", "numl.sif", b"3"))
    assert not (tmp_path / SIGNATURE).exists()


def test_an_image_with_a_sites_models_says_which_and_nothing_of_those_that_they_replace(tmp_path):
    weights = tmp_path / "model.onnx"
    weights.write_bytes(b"of the site")
    (tmp_path / "numl_serving").mkdir()
    (tmp_path / "numl_serving" / "compiler.txt").write_text("g++: 12.2\n")
    lock = SimpleNamespace(digest="1" * 64, python="3.11")
    environment: Any = SimpleNamespace(lock=lock, digest="2" * 64, site_packages=tmp_path)
    own: Any = StagedModel("nugraph3", None, ("1",), {"1/model.onnx": weights})
    site = SiteContent("site", (own,), {"vision": environment})
    request = BuildRequest(("image",), "cpu", find_release("24.10"), tmp_path)
    base = BaseImage("debian:12", "d", "sha256:" + "3" * 64), System("debian", "12", ())
    plain = Ingredients("image", request, environment, BUILD.source, base)
    made = Ingredients("image", replace(request, site=site), environment, BUILD.source, base)
    assert set(plain.kits) - set(made.kits) == {"nugraph3"}
    assert plain.models != made.models
    more = [each for each in made.build().inputs if each not in plain.build().inputs]
    assert more == [
        resource("models", made.models),
        resource("nugraph3/1/model.onnx", hashlib.sha256(b"of the site").hexdigest()),
        resource("environment vision", "2" * 64),
    ]
    assert made.build().tools["compiler"] == "g++: 12.2"
