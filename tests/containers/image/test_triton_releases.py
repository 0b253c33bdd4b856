"""Triton 24.05, which most notes of others name: from a registry into an image that serves."""

from __future__ import annotations

import json
import re
import secrets

import pytest

from deploy.artefacts.manifest import read_manifest
from deploy.host.paths import cache_folder
from deploy.main import main
from tests.containers.conftest import STOPS
from tests.releases import image_layers, in_cache, lay_out, layer, push

RELEASE = "24.05"


@pytest.fixture(scope="module")
def built(registry, engine, tmp_path_factory):
    """The folder of artefacts after ``numlkit build --target image --triton IMAGE``."""
    folder = tmp_path_factory.mktemp("triton")
    # Unlike any that the cache has.
    layers = [layer({"etc/name": secrets.token_bytes(8)})]
    layers += image_layers(lay_out(RELEASE, "3.10", folder))
    image = push(registry, "nvidia/tritonserver", f"{RELEASE}-py3", layers, RELEASE)
    words = ["build", "--target", "image", "--triton", image, "--out", str(folder / "dist")]
    with in_cache(image):
        assert main([*words, "--quiet"]) == 0
        yield folder / "dist"
        engine.images.remove(f"numlkit/numl:{RELEASE}-serving", force=True)


def test_an_image_on_it_serves_the_right_values(built, runner):
    [artefact] = read_manifest(built).artefacts
    assert artefact.name == f"numlkit/numl:{RELEASE}-serving"
    assert artefact.inputs["triton"] == "2.46.0"
    assert artefact.bytes < 400e6
    server = runner.start(artefact.name, STOPS)
    server.wait_healthy()
    server.assert_right()
    status, words = server.exec("ls", "/opt/tritonserver", "/opt/numl/env/lib")
    assert status == 0
    assert {"LICENSE", "TRITON_VERSION", "python3.10"} <= set(words.split())
    assert server.stop() == 0


def test_its_sbom_names_the_image_that_it_was_taken_from(built):
    [path] = built.glob("*.image.cdx.json")
    [triton] = [
        part for part in json.loads(path.read_text())["components"]
        if part["name"] == "tritonserver"
    ]  # fmt: skip
    facts = {each["name"]: each["value"] for each in triton["properties"]}
    assert triton["version"] == "2.46.0"
    origin = r"127\.0\.0\.1:\d+/nvidia/tritonserver@sha256:[0-9a-f]{64}"
    assert re.fullmatch(origin, facts["numlkit:origin"])
    assert not (cache_folder() / "layers").exists(), "what was fetched is not kept twice"
