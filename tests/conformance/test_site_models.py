"""A site's own models beside the kit's: an environment of their own, an ensemble, no golden event.

The site's models are small ones made for these tests; server, engines and environments are real.
"""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.http as http

from deploy.engines.server import living_stubs
from deploy.environment.environment import plan_environment
from tests.inputs import inputs_of
from tests.kit import SOON_S
from tests.site_models import PIXELS, WEIGHTS, write_environment, write_golden, write_site

MODELS = ("nugraph3", "classifier", "plain", "pair")


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    plan_environment("serving").make(lambda _text: None)
    return write_environment(tmp_path_factory.mktemp("environments") / "their numpy.tar.gz")


@pytest.fixture(scope="session")
def repository(environment, tmp_path_factory):
    return write_site(tmp_path_factory.mktemp("site"), environment)


def launch(repository: Path) -> list[str]:
    """Return the flags of the site's deployment."""
    # An image has no bytecode of what plain imports: on a busy host that takes minutes.
    own = ["--models-dir", str(repository), "--models", ",".join(MODELS)]
    return [*own, "--instances", "1", "--timeout", str(SOON_S)]


@pytest.fixture(scope="module")
def site(kit, repository):
    """The kit's nugraph3 beside the site's models."""
    yield kit.up("site", *launch(repository))
    kit.end("site")


def contents(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Return what tells whether anything in a folder was changed, or is new."""
    facts = {path: path.lstat() for path in folder.rglob("*")}
    return {path: (f.st_mode, f.st_size, f.st_mtime_ns) for path, f in facts.items()}


def ask(answer: dict[str, Any], model: str) -> dict[str, np.ndarray]:
    with http.InferenceServerClient(f"127.0.0.1:{answer['ports']['http']}") as client:
        result = client.infer(model, inputs_of(http, {"pixels": PIXELS}))
    return {name: result.as_numpy(name) for name in ("scores", "label", "seen")}


def test_every_model_has_the_processes_that_its_configuration_says(kit, site):
    assert site["models"] == list(MODELS)
    status = kit.json("status", "--name", "site")
    assert status["ok"], status
    counts = {m["model"]: (m["alive"], m["wanted"]) for m in status["models"]}
    assert counts == {"nugraph3": (3, 3), "classifier": (2, 2), "plain": (1, 1), "pair": (0, 0)}
    compared = {m["model"] for m in status["models"] if m["smoke"]["compared"]}
    assert compared == {"nugraph3", "classifier"}


def test_the_smoke_inference_compares_values_where_there_are_some(kit, site):
    answer = kit.json("smoke", "--name", "site")
    assert answer["ok"], answer
    assert len(answer["results"]) == 2 * len(MODELS)


@pytest.mark.parametrize("model", ["classifier", "pair"])
def test_an_image_classifier_and_an_ensemble_of_it_answer(site, model):
    answer = ask(site, model)
    np.testing.assert_array_equal(answer["scores"], PIXELS @ WEIGHTS)
    assert answer["label"].tolist() == [b"dog"]
    assert answer["seen"][0] > 0, "it was warmed up before it was ready"


def test_nothing_in_the_sites_folders_is_changed(kit, repository, site):
    before = contents(repository.parent)
    assert not [path for path in before if "__pycache__" in path.parts]
    kit.json("smoke", "--name", "site")
    assert contents(repository.parent) == before


def test_a_killed_process_of_a_sites_model_is_replaced(kit, site):
    stubs = living_stubs(psutil.Process(site["server"]["pid"]))
    victim = next(stub.process.pid for stub in stubs if stub.model == "classifier")
    os.kill(victim, signal.SIGKILL)
    state = kit.mended("site", "heals")
    assert (state["heals"], state["server"]) == (1, site["server"])


def test_up_again_tells_when_a_file_of_the_site_has_changed(kit, repository, site):
    flags = launch(repository)
    assert kit.up("site", *flags)["server"] == site["server"]
    os.utime(repository / "plain" / "config.pbtxt")
    assert kit.up("site", *flags)["server"] == site["server"], "the same words, written anew"
    golden = repository / "classifier" / "1" / "golden.npz"
    os.utime(golden)
    answer = kit.json("up", "--name", "site", *flags)
    assert "configuration that have changed since" in answer["error"]


def test_all_of_the_sites_models_are_served_where_none_are_named(kit, repository):
    answer = kit.json(
        "up", "--name", "all", "--models-dir", str(repository), "--instances", "1", "--dry-run"
    )
    assert answer["status"] == 0, answer
    assert list(answer["plan"]["instances"]) == [
        "nugraph2", "nugraph2_cpu", "nugraph3", "classifier", "pair", "plain",
    ]  # fmt: skip


def test_a_sites_model_that_answers_wrongly_is_named(kit, environment, tmp_path):
    repository = write_site(tmp_path, environment)
    write_golden(repository / "classifier" / "1" / "golden.npz", b"ibex")
    answer = kit.refused("wrong", "--models-dir", str(repository), "--models", "classifier")
    assert answer["error"] == (
        "model classifier is ready but gives wrong answers: output label differs"
    )


def test_an_environment_that_cannot_be_unpacked_is_refused_before_anything_starts(
    kit, environment, tmp_path
):
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(environment.read_bytes()[:10_000_000])
    repository = write_site(tmp_path, cut)
    answer = kit.refused("cut", "--models-dir", str(repository), "--models", "classifier,plain")
    begin = f"model classifier: execution environment {cut} is cut off or damaged: "
    assert answer["error"].startswith(begin)
    assert not (kit.folder("cut") / "server.log").exists()


def test_an_environment_that_does_not_fit_into_a_full_tmp_is_refused(kit, full_tmp, repository):
    if kit.engine != "local":
        pytest.skip("a container has a /tmp of its own")
    flags = ["--models-dir", str(repository), "--models", "classifier"]
    answer = full_tmp.refused("extracted", *flags)
    assert answer["error"].startswith("not enough disk space: "), answer
    assert "in /tmp for packed environments, extracted" in answer["error"], answer
