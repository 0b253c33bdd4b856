"""Models of one's own in an image and a .sif, which serve them without their repository."""

import json
import secrets
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from deploy.host.paths import CHECKOUT
from tests.kit import NUMLKIT, Kit
from tests.programs import run_program

MODELS = ("drift", "hits")
LIKE = ("electron_lifetime", "hit_finder")


class Baked(NamedTuple):
    images: dict[str, str]
    client: str


def command(*words: str) -> dict[str, Any]:
    done = run_program([NUMLKIT, *words, "--json"], cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="session")
def baked(tmp_path_factory):
    """The image and the .sif, from one build; the repository is gone."""
    folder = tmp_path_factory.mktemp("baked")
    repository = folder / f"test-{secrets.token_hex(4)}"
    for name, entry in zip(MODELS, LIKE, strict=True):
        command("add", name, "--like", entry, "--into", str(repository))
    out = folder / "dist"
    built = command("build", "--models-dir", str(repository), "--target", "sif", "--out", str(out))[
        "artefacts"
    ]
    client = shutil.copy(repository / "hits" / "client.py", folder)
    shutil.rmtree(repository)
    names = {each["kind"]: each["name"] for each in built}
    yield Baked({"docker": names["image"], "apptainer": str(out / names["sif"])}, str(client))
    subprocess.run(["docker", "rmi", "--force", names["image"]], check=True, capture_output=True)


def test_baked_models_are_served_without_their_repository(request, kit: Kit) -> None:
    if kit.engine == "local":
        pytest.skip("needs a container")
    baked = request.getfixturevalue("baked")
    image = replace(kit, image=baked.images[kit.engine])
    answer = image.up("baked", "--models", ",".join(MODELS))
    status = kit.json("status", "--name", "baked")
    assert status["ok"], status
    assert {m["model"]: m["smoke"]["compared"] for m in status["models"]} == dict.fromkeys(
        MODELS, True
    )
    url = f"127.0.0.1:{answer['ports']['grpc']}"
    asked = [sys.executable, baked.client, "--url", url, "--model", "hits"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert "of the pulses found" in done.stdout, done.stderr
    kit.end("baked")
