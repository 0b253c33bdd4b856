"""What of a site's repository an image can have, and what is said of the rest."""

from typing import Any

import pytest

from deploy.artefacts.context import Packed, wired_model
from deploy.artefacts.site import ENVIRONMENTS
from deploy.engines.baked import site_content
from deploy.host.errors import KitError
from deploy.triton.release import find_release
from tests.unit.deploy.engines.test_named_environments import NAMED, write_lock
from tests.unit.deploy.site_repository import CONFIG, environment_parameter, write_model


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_lock(tmp_path / "envs" / "vision", "numpy==1.26.4")
    return tmp_path / "My models"


def content(repository, flavour="serving"):
    return site_content(
        repository,
        flavour=flavour,
        named="24.10",
        triton=find_release("24.10"),
        say=lambda _: None,
    )


def test_an_image_has_the_models_with_the_places_of_their_environments(repository):
    write_model(repository, "m", config=NAMED)
    found = content(repository)
    assert found.name == "my-models"
    assert list(found.environments) == ["vision"]
    assert found.labels["org.numlkit.site.models"] == "m"
    (model,) = found.models
    place = model.config.parameters["EXECUTION_ENV_PATH"].string_value
    assert place == "/opt/numl/environments/vision"
    assert model.stub is None


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (CONFIG, "model m runs in NuGraph's full environment"),
        (CONFIG + environment_parameter("/tmp"), "model m names its environment by a path"),
        ('backend: "python"' + NAMED.partition("instance_group")[2].partition("}")[2],
         "model m: its config.pbtxt lacks backend, inputs or outputs"),
    ],
    ids=["serving has no torch", "a path", "incomplete"],
)  # fmt: skip
def test_a_model_that_an_image_could_not_serve_is_named(repository, config, says):
    write_model(repository, "m", config=config)
    with pytest.raises(KitError) as caught:
        content(repository)
    assert caught.value.cause.startswith(says)
    assert caught.value.remedy


def test_an_image_with_torch_serves_a_model_without_an_environment_of_its_own(repository):
    write_model(repository, "m")
    (model,) = content(repository, "cpu").models
    assert model.config.parameters["EXECUTION_ENV_PATH"].string_value == "/opt/numl/env"


def test_a_stock_image_finds_the_packed_environment_beside_the_models(repository):
    write_model(repository, "m", config=NAMED)
    found = content(repository)
    environment = found.environments["vision"]
    packed = Packed(repository / "vision.tar.gz", environment, ENVIRONMENTS / "vision")
    places = {str(packed.place): packed}
    distribution: Any = None  # the server's own stub fits
    wired = wired_model(found.models[0], places, distribution, own_stub=True)
    named = {name: value.string_value for name, value in wired.config.parameters.items()}
    assert named == {"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/../vision.tar.gz"}
    assert wired.copies == found.models[0].copies
