"""A site's models in an image: what their environments share, the recipe, the labels."""

from pathlib import Path

from deploy.artefacts.context import CONTAINERS
from deploy.artefacts.site import KIT_ALONE, dockerfile, environments_in, models_in, shared

ENV = Path("/opt/numl/env")
PACKAGES = "lib/python3.11/site-packages"
FILES = {
    "lib/python3.11/os.py": "o",
    f"{PACKAGES}/numpy/a.py": "a",
    f"{PACKAGES}/numpy/b.py": "b",
    f"{PACKAGES}/six.py": "s",
}


def test_what_is_there_already_becomes_a_link_but_not_in_a_package_of_another_version():
    there = {(path, content): ENV / path for path, content in FILES.items()}
    compiled = {f"{PACKAGES}/numpy/__pycache__/a.cpython-311.pyc": "c"}
    own = {**FILES, f"{PACKAGES}/six.py": "t", f"{PACKAGES}/mine.py": "m", **compiled}
    linked = ("lib/python3.11/os.py", f"{PACKAGES}/numpy/a.py", f"{PACKAGES}/numpy/b.py")
    assert shared(list(own.items()), there) == {path: f"{ENV}/{path}" for path in linked}
    another = {**FILES, f"{PACKAGES}/numpy/b.py": "another"}
    assert not [path for path in shared(list(another.items()), there) if "numpy" in path]


def test_each_environment_is_a_layer_and_without_any_the_recipe_is_the_kits():
    text = (CONTAINERS / "Dockerfile").read_text()
    assert dockerfile(text, {}) == text
    some: dict = {"ocr": None, "text": None}
    added = set(dockerfile(text, some).splitlines()) - set(text.splitlines())
    assert added == {"ADD environments/ocr.tar /", "ADD environments/text.tar /"}


def test_the_labels_say_what_an_image_has():
    labels = {
        "org.numlkit.site.models": "vision,read",
        "org.numlkit.site.environments": (
            '{"vision": {"digest": "abc", "numpy": "1.26.4", "python": "3.11"}}'
        ),
    }
    assert models_in(labels) == ("vision", "read")
    found = environments_in(labels)["vision"]
    place = Path("/opt/numl/environments/vision")
    assert (found.path, found.python, found.numpy) == (place, "3.11", "1.26.4")
    assert found.libpython == place / "lib/libpython3.11.so.1.0"
    assert KIT_ALONE.labels == {}
    assert (models_in({}), environments_in({})) == ((), {})
