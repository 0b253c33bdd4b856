"""A site's models that name an environment by its lock, and those that call other models."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.engines.site import check_site, stage_site_model
from deploy.host.errors import EnvironmentSetupError, KitError, ModelError
from deploy.triton.config import read_config
from deploy.triton.site import with_callees
from tests.unit.deploy.engines.site import ENSEMBLE, IN_CONTAINER, resolve
from tests.unit.deploy.site_repository import CONFIG, write_model

ZEROS = "0" * 64
NAMED = CONFIG + 'parameters { key: "NUMLKIT_ENV" value { string_value: "vision" } }\n'
CALLING = CONFIG + 'parameters { key: "NUMLKIT_CALLS" value { string_value: "one, two" } }\n'


@pytest.fixture
def repository(tmp_path):
    """A repository whose model names the environment that is locked beside it."""
    write_lock(tmp_path / "envs" / "vision", "numpy==1.26.4")
    write_model(tmp_path / "models", "m", config=NAMED)
    return tmp_path / "models"


def write_lock(source: Path, *pins: str) -> None:
    (source / "locks").mkdir(parents=True, exist_ok=True)
    lines = [f"{pin} \\\n    --hash=sha256:{ZEROS}" for pin in pins]
    (source / "locks" / "cpu.txt").write_text("\n".join(lines) + "\n")


def refused(repository: Path, *models: str) -> KitError:
    with pytest.raises(ModelError) as caught:
        check_site(resolve(repository, *models), IN_CONTAINER, lambda _: None)
    assert caught.value.cause.startswith("model m")
    cause = caught.value.__cause__
    assert isinstance(cause, KitError)
    return cause


def test_a_named_environment_is_planned_without_torch_and_wired_into_the_copy(repository, home):
    resolved = resolve(repository, "m")
    assert not resolved.uses_kits
    environment = resolved.made_environments["vision"]
    assert environment.relocatable
    assert environment.lock.torch is None
    in_place = home / "cache" / "numlkit" / "environments"
    assert environment.folder.is_relative_to(in_place), "no build clears it away under a server"
    assert environment.folder.name.startswith("vision-cpu-")
    check_site(resolved, IN_CONTAINER, lambda _: None)
    staged = stage_site_model(resolved, resolved.site[0], IN_CONTAINER)
    place = staged.config.parameters["EXECUTION_ENV_PATH"].string_value
    assert place == str(environment.folder)
    mounted = replace(IN_CONTAINER, places={environment.folder: Path("/opt/numl/1")})
    staged = stage_site_model(resolved, resolved.site[0], mounted)
    assert staged.config.parameters["EXECUTION_ENV_PATH"].string_value == "/opt/numl/1"
    assert "EXECUTION_ENV_PATH" not in read_config(repository / "m" / "config.pbtxt").parameters


def test_another_lock_is_another_launch(repository):
    before = resolve(repository, "m").digest("")
    write_lock(repository.parent / "envs" / "vision", "numpy==1.26.3")
    assert resolve(repository, "m").digest("") != before


@pytest.mark.parametrize(
    ("pins", "says"),
    [
        (("numpy==2.1.0",), "has numpy 2.1.0, with which this Triton returns empty tensors"),
        (("six==1.17.0",), "has no numpy, which every stub imports"),
    ],
)
def test_a_lock_that_no_stub_can_use_is_refused_before_it_is_made(repository, pins, says):
    write_lock(repository.parent / "envs" / "vision", *pins)
    error = refused(repository, "m")
    assert isinstance(error, EnvironmentSetupError)
    assert error.cause.endswith(says)


def test_an_environment_that_is_not_locked_or_not_there_is_named(repository):
    source = repository.parent / "envs" / "vision"
    (source / "locks" / "cpu.txt").unlink()
    (source / "requirements.in").write_text("numpy\n")
    error = refused(repository, "m")
    assert (error.cause, error.remedy) == (f"{source} has no lock", f"numlkit lock {source}")
    shutil.rmtree(source)
    error = refused(repository, "m")
    assert error.cause == f"no environment 'vision': neither {source} nor one of the kit's"


def test_nugraphs_environment_may_be_named_too(tmp_path):
    write_model(tmp_path, "m", config=NAMED.replace("vision", "numl"))
    assert resolve(tmp_path, "m").flavour == "cpu"


def test_two_ways_to_name_an_environment_are_one_too_many(tmp_path):
    write_model(tmp_path, "m", environment="/tmp", config=NAMED)
    with pytest.raises(ModelError, match="EXECUTION_ENV_PATH and NUMLKIT_ENV are both set"):
        _ = resolve(tmp_path, "m").site


def test_what_a_model_calls_is_served_with_it(tmp_path):
    write_model(tmp_path, "e", config=ENSEMBLE)
    write_model(tmp_path, "m", config=CALLING)
    for name in ("one", "two", "three"):
        write_model(tmp_path, name)
    assert with_callees(tmp_path, ["e"]) == ("e", "m", "one", "two")
    deployment = Deployment(models_dir=tmp_path, models=("two", "m"))
    assert Resolved.of(deployment).deployment.models == ("two", "m", "one")


def test_a_model_that_calls_what_is_not_there_is_refused(tmp_path):
    write_model(tmp_path, "m", config=CALLING)
    write_model(tmp_path, "two")
    assert with_callees(tmp_path, ["m"]) == ("m", "two")
    error = refused(tmp_path, "m", "two")
    wanted = ("model m calls one, which is not served", "--models m,two,one")
    assert (error.cause, error.remedy) == wanted
