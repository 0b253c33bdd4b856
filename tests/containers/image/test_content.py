"""What the image is: its labels, its files, its size."""

import json

import pytest

from tests.containers.conftest import HEALTH

MB = 1_000_000
LOOK = """
import importlib.metadata, json, os, pathlib
below = [path for path in pathlib.Path("/opt").rglob("*")]
facts = {path: path.lstat() for path in below}
sync = pathlib.Path("/opt/numl/sync")
print(json.dumps({
    "unreadable": [str(path) for path in below if not os.access(path, os.R_OK)],
    "writable": [str(p) for p in below if not p.is_symlink() and os.access(p, os.W_OK)],
    "owners": sorted({(found.st_uid, found.st_gid) for found in facts.values()}),
    "setuid": [str(path) for path, found in facts.items() if found.st_mode & 0o6000],
    "archives": [str(path) for path in below if path.suffix in (".tar", ".whl", ".conda")],
    "opt": sorted(os.listdir("/opt")), "numl": sorted(os.listdir("/opt/numl")),
    "tmp": os.listdir("/tmp"),
    "packages": sorted(each.name for each in importlib.metadata.distributions()),
    "sync": sum(found.st_blocks for path, found in facts.items() if sync in path.parents) * 512,
}))
"""


@pytest.fixture(scope="module")
def content(engine, image):
    """What a program in the image sees."""
    python = "/opt/numl/env/bin/python"
    options = {"entrypoint": python, "user": "12345:0", "remove": True}
    return json.loads(engine.containers.run(image.tag, ["-IBc", LOOK], **options))


def test_it_says_what_it_is(engine, image, ingredients):
    config = engine.images.get(image.tag).attrs["Config"]
    assert (ingredients.labels | ingredients.base.labels).items() <= config["Labels"].items()
    assert config["User"] == "1000:0"
    assert config["Entrypoint"] == ["/opt/numl/bin/serve"]
    assert set(config["ExposedPorts"]) == {"8000/tcp", "8001/tcp", "8002/tcp"}
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", HEALTH]


def test_it_holds_what_it_serves_with_and_nothing_of_the_build_and_everybody_may_read_it(content):
    assert {name: found for name, found in content.items() if name != "sync"} == {
        "unreadable": [],
        "writable": [],
        "owners": [[0, 0]],
        "setuid": [],
        "archives": [],
        "opt": ["numl", "tritonserver"],
        "numl": ["bin", "checked.json", "env", "models", "sync", "templates"],
        "tmp": [],
        "packages": ["numl-serving", "numpy", "safetensors"],  # without torch, and what it needs
    }


def test_it_is_at_most_as_large_as_wanted(image, content):
    assert content["sync"] <= 28 * MB  # 16 MB are what verifies signatures
    assert image.size <= 300 * MB
