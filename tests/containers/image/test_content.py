"""What the image is: its labels, its files, its size."""

import json

from tests.containers.conftest import HEALTH

MB = 1_000_000


def test_it_says_what_it_is(engine, image, ingredients):
    config = engine.images.get(image.tag).attrs["Config"]
    assert (ingredients.labels | ingredients.base.labels).items() <= config["Labels"].items()
    assert config["User"] == "1000:0"
    assert config["Entrypoint"] == ["/opt/numl/bin/serve"]
    assert set(config["ExposedPorts"]) == {"8000/tcp", "8001/tcp", "8002/tcp"}
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", HEALTH]


def test_it_holds_nothing_of_the_build_and_everybody_may_read_it(engine, image):
    script = (
        "import json, os, pathlib, stat\n"
        "below = [p for p in pathlib.Path('/opt').rglob('*')]\n"
        "print(json.dumps({\n"
        "  'unreadable': [str(p) for p in below if not os.access(p, os.R_OK)],\n"
        "  'writable': [str(p) for p in below if not p.is_symlink()\n"
        "               and os.access(p, os.W_OK)],\n"
        "  'owners': sorted({(s.st_uid, s.st_gid) for s in map(os.lstat, below)}),\n"
        "  'setuid': [str(p) for p in below if p.lstat().st_mode & 0o6000],\n"
        "  'archives': [str(p) for p in below if p.suffix in ('.tar', '.whl', '.conda')],\n"
        "  'opt': sorted(os.listdir('/opt')), 'numl': sorted(os.listdir('/opt/numl')),\n"
        "  'tmp': os.listdir('/tmp'),\n"
        "}))\n"
    )
    out = engine.containers.run(
        image.tag,
        ["-IBc", script],
        entrypoint="/opt/numl/env/bin/python",
        user="12345:0",
        remove=True,
    )
    found = json.loads(out)
    assert found == {
        "unreadable": [],
        "writable": [],
        "owners": [[0, 0]],
        "setuid": [],
        "archives": [],
        "opt": ["numl", "tritonserver"],
        "numl": ["bin", "checked.json", "env", "models", "sync", "templates"],
        "tmp": [],
    }


def test_it_is_at_most_as_large_as_wanted(engine, image, capsys):
    folders = ["/usr", "/opt/tritonserver", "/opt/numl/models", "/opt/numl/env", "/opt/numl/sync"]
    command = ["-s", "-B1", *folders]
    words = engine.containers.run(image.tag, command, entrypoint="du", remove=True).decode()
    sizes = {folder: int(size) for size, folder in map(str.split, words.splitlines())}
    with capsys.disabled():
        print(f"\nimage: {image.size / MB:.0f} MB")
        for folder, size in sizes.items():
            print(f"  {folder}: {size / MB:.0f} MB")
    assert sizes["/opt/numl/sync"] <= 28 * MB  # 16 MB are what verifies signatures
    assert image.size <= 300 * MB


def test_it_serves_without_torch_and_what_comes_with_it(engine, image):
    script = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    out = engine.containers.run(
        image.tag, ["-IBc", script], entrypoint="/opt/numl/env/bin/python", remove=True
    )
    assert set(out.decode().split()) == {"numl-serving", "numpy", "safetensors"}
