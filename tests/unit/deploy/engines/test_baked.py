"""What of a site's repository an image can have, and what is said of the rest."""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.artefacts.context import Packed, wired_model
from deploy.artefacts.keys import read_signer
from deploy.artefacts.labels import ENVIRONMENT_LABEL, FLAVOUR_LABEL, TRITON_LABEL
from deploy.artefacts.site import ENVIRONMENTS, ENVIRONMENTS_LABEL, MODELS_LABEL
from deploy.deployment.deployment import DEFAULT_MODELS, Deployment
from deploy.deployment.plan import ContainerPlan, LaunchPlan
from deploy.deployment.state import DeploymentFolder
from deploy.engines.apptainer import ApptainerEngine
from deploy.engines.baked import as_started, site_content, with_models_of_image
from deploy.engines.base import Engine
from deploy.engines.resolved import Resolved
from deploy.host.errors import KitError, LaunchError, ModelError
from deploy.triton.release import find_release
from tests.keys import new_key, write_key
from tests.plans import make_plan
from tests.programs import write_program
from tests.unit.deploy.engines.test_named_environments import NAMED, write_lock
from tests.unit.deploy.site_repository import (
    CONFIG,
    environment_parameter,
    write_archive,
    write_model,
)


@pytest.fixture
def repository(tmp_path):
    write_lock(tmp_path / "envs" / "vision", "numpy==1.26.4")
    return tmp_path / "My models"


def content(repository, flavour="serving", **given):
    triton = find_release("24.10")
    return site_content(
        repository, flavour=flavour, named="24.10", triton=triton, say=lambda _: None, **given
    )


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (CONFIG, "model m runs in NuGraph's full environment"),
        (CONFIG + environment_parameter("/tmp"), "model m names its environment by a path"),
        (NAMED.replace("KIND_CPU", "KIND_GPU"), "model m, or one that it calls, is of KIND_GPU"),
        ('backend: "python"' + NAMED.partition("instance_group")[2].partition("}")[2],
         "model m: its config.pbtxt lacks inputs or outputs"),
    ],
    ids=["serving has no torch", "a path", "no GPU", "incomplete"],
)  # fmt: skip
def test_a_model_that_an_image_could_not_serve_is_named(repository, config, says):
    write_model(repository, "m", config=config)
    with pytest.raises(KitError) as caught:
        content(repository)
    assert caught.value.cause.startswith(says)
    assert caught.value.remedy


def test_the_environments_of_an_image_are_made_of_what_the_build_is_given(repository, tmp_path):
    write_model(repository, "m", config=NAMED)
    (tmp_path / "wheels").mkdir()
    given = {"wheels": tmp_path / "wheels", "python": Path(sys.executable)}
    environment = content(repository, **given).environments["vision"]
    assert environment.wheels == given["wheels"]
    assert environment.interpreter.executable == given["python"].resolve()


@pytest.mark.parametrize(
    ("flavour", "config", "place"),
    [
        ("serving", NAMED, "/opt/numl/environments/vision"),
        ("gpu", NAMED.replace("KIND_CPU", "KIND_GPU"), "/opt/numl/environments/vision"),
        ("cpu", CONFIG, "/opt/numl/env"),
    ],
    ids=["its own environment", "a model that needs a GPU", "the one with torch"],
)
def test_an_image_has_the_models_with_the_places_of_their_environments(
    repository, flavour, config, place
):
    write_model(repository, "m", config=config)
    found = content(repository, flavour)
    assert (found.name, found.labels["org.numlkit.site.models"]) == ("my-models", "m")
    assert list(found.environments) == ["vision"] * (config != CONFIG)
    (model,) = found.models
    assert model.config.parameters["EXECUTION_ENV_PATH"].string_value == place
    assert model.stub is None


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


# Stands for Apptainer: a .sif is the tar of the models in it, with its labels.
APPTAINER = """\
case "$*" in
exec*) exec cat "$4" ;;
*inspect*) for sif; do :; done; exec tar -xOf "$sif" labels.json ;;
esac
"""


@dataclass(frozen=True)
class Sif:
    """The path of a .sif, at which somebody may put another one."""

    path: Path

    def holds(
        self,
        code: str,
        *,
        models: str = "own",
        labelled: str = "own",
        on_gpu: str = "",
        **more: str,
    ) -> str:
        """Write one whose models have a code; return its sha256."""
        labels = {ENVIRONMENT_LABEL: "x", FLAVOUR_LABEL: "cpu", TRITON_LABEL: "24.10", **more}
        labels[MODELS_LABEL] = labelled
        said = {"data": {"attributes": {"labels": labels}}, "type": "container"}
        files = {"labels.json": json.dumps(said)}
        for model in models.split(","):
            config = NAMED if ENVIRONMENTS_LABEL in more else CONFIG
            config = config.replace("KIND_CPU", "KIND_GPU") if model == on_gpu else config
            files |= {f"{model}/config.pbtxt": config, f"{model}/1/model.py": code}
        write_archive(self.path, (), kind="", more=files)
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def engine(self) -> ApptainerEngine:
        """Return the engine that has read it."""
        found = ApptainerEngine(Resolved(Deployment(engine="apptainer", image=str(self.path))))
        assert found.image
        return found


@pytest.fixture
def sif(tmp_path, monkeypatch):
    program = write_program(tmp_path / "bin" / "apptainer", APPTAINER)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return Sif(tmp_path / "numl.sif")


def served(engine: Engine) -> str:
    repository = with_models_of_image(engine).deployment.models_dir
    assert sorted(path.name for path in repository.parent.iterdir()) == ["models"]
    return (repository / "own" / "1" / "model.py").read_text()


@pytest.mark.parametrize("flavour", ["cpu", "gpu"])
def test_a_server_without_a_gpu_leaves_out_what_needs_one(sif, flavour):
    both, more = "own,other", {FLAVOUR_LABEL: "gpu"}
    sif.holds("signed", models=both, labelled=both, on_gpu="own", **more)
    deployment = Deployment(engine="apptainer", image=str(sif.path), flavour=flavour)
    engine = with_models_of_image(ApptainerEngine(Resolved(deployment)))
    own = [model for model in engine.deployment.models if model not in DEFAULT_MODELS]
    assert own == (["own", "other"] if flavour == "gpu" else ["other"])


def test_models_of_a_file_that_took_the_place_of_a_sif_are_not_served_then_or_later(sif):
    sif.holds("signed")
    engine = sif.engine()
    sif.holds("unsigned")
    with pytest.raises(LaunchError, match="was replaced meanwhile"):
        with_models_of_image(engine)
    sif.holds("signed")
    assert served(sif.engine()) == "signed"


def test_models_copied_out_of_one_file_are_not_served_with_another(sif, tmp_path):
    digest = sif.holds("unsigned")
    assert served(sif.engine()) == "unsigned"  # and stays in the cache
    engine = sif.engine()
    sif.holds("signed")
    engine = with_models_of_image(engine)
    assert engine.image.digest == digest
    with pytest.raises(LaunchError, match="was replaced meanwhile"):
        engine._keep(DeploymentFolder("default", tmp_path / "deployments"))


def test_labels_of_another_file_choose_no_models(sif, tmp_path, monkeypatch):
    """Somebody puts one there just when the labels are read."""
    sif.holds("signed", models="own,retired")

    def digest_then_swap(path: Path) -> str:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        sif.holds("unsigned", labelled="own,retired")
        return digest

    monkeypatch.setattr("deploy.engines.apptainer.sha256_of", digest_then_swap)
    engine = sif.engine()
    sif.holds("signed", models="own,retired")
    with pytest.raises(LaunchError, match="was replaced meanwhile"):
        with_models_of_image(engine)
    with pytest.raises(LaunchError, match="was replaced meanwhile"):
        engine._keep(DeploymentFolder("default", tmp_path / "deployments"))


FACTS = {"python": "3.11", "numpy": "1.26.4", "digest": "d"}


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {TRITON_LABEL: "26.07"},
        {ENVIRONMENTS_LABEL: json.dumps({"vision": FACTS})},
    ],
    ids=["plain", "another Triton", "its own environment"],
)
def test_what_was_started_from_an_image_with_models_is_found_to_be_the_same(
    sif, tmp_path, monkeypatch, labels
):
    key = read_signer(write_key(new_key(), tmp_path / "key.pub"))
    monkeypatch.setattr(ApptainerEngine, "verified", lambda engine, _: (engine, ""))
    sif.holds("signed", models="own,broken", labelled="own,broken", **labels)
    engine = with_models_of_image(sif.engine())
    engine = engine.without(ModelError("broken", "cannot be loaded", None))
    container = ContainerPlan(image=str(sif.path), name="numl", mounts=())
    plan = make_plan(
        tmp_path, engine="apptainer", deployment=engine.deployment, container=container,
        broken=engine.resolved.broken,
    )  # fmt: skip
    again = as_started(LaunchPlan.model_validate_json(plan.model_dump_json()), key)
    assert again.artefact() == engine.artefact()
