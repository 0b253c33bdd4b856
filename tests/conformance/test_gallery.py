"""Every model of the gallery: ready, right, as accurate as its page says, and well guarded."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

from deploy.client.example import example_inputs
from deploy.deployment.deployment import find_site_models
from deploy.host.paths import CHECKOUT
from deploy.triton.golden import golden_of
from tests.kit import Kit

GALLERY = CHECKOUT / "gallery"
MODELS = find_site_models(GALLERY)


@dataclass(frozen=True)
class Bad:
    """A request that is refused: what becomes of one input, and what is said about it."""

    model: str
    tensor: str
    change: Callable[[np.ndarray], np.ndarray]
    says: str


def put(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array.flat[0] = value
        return array

    return change


BAD = (
    Bad("gat", "edgeindex__1", put(40), "edgeindex__1 names paper 40; x__0 has 40, counted from 0"),
    Bad("gat", "edgeindex__1", put(-1), "edgeindex__1 names paper -1; x__0 has 40, counted from 0"),
    Bad("gat", "x__0", put(np.nan), "x__0 has values that are negative or not finite"),
    Bad("gat", "x__0", lambda x: x[:, 1:], "unexpected shape for input 'x__0' for model 'gat'."),
)


def skip_unless_local(kit: Kit) -> None:
    if kit.engine != "local":
        pytest.skip("in full on one engine; of the others, test_site_models.py")


@pytest.fixture(scope="module")
def served(kit: Kit) -> Iterator[dict[str, Any]]:
    """All models of the gallery in one server."""
    skip_unless_local(kit)
    yield kit.up("gallery", "--models-dir", str(GALLERY), "--models", ",".join(MODELS))
    kit.down("gallery")


@pytest.fixture(scope="module")
def server(served: dict[str, Any]) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{served['ports']['grpc']}") as client:
        yield client


def ask(server: triton.InferenceServerClient, model: str, tensors: dict[str, np.ndarray]) -> None:
    asked = []
    for name, array in tensors.items():
        asked.append(triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        asked[-1].set_data_from_numpy(array)
    server.infer(model, asked)


def run_client(model: str, served: dict[str, Any], *words: str) -> str:
    url = f"127.0.0.1:{served['ports']['grpc']}"
    command = [sys.executable, GALLERY / model / "client.py", "--url", url, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_model_answers_its_reference_output(kit: Kit, served: dict[str, Any]) -> None:
    status = kit.json("status", "--name", "gallery")
    assert status["ok"], status
    judged = {m["model"]: m["smoke"]["compared"] for m in status["models"]}
    assert judged == dict.fromkeys(MODELS, True)


@pytest.mark.parametrize("model", MODELS)
def test_the_reference_output_is_what_numlkit_golden_writes(
    kit: Kit, served: dict[str, Any], model: str
) -> None:
    answer = kit.json("golden", model, "--name", "gallery", "--dry-run")
    golden = golden_of(GALLERY / model)
    assert golden is not None
    assert answer["outputs"] == {n: list(a.shape) for n, a in golden.outputs.items()}
    inputs = example_inputs(GALLERY / model)
    for name, array in golden.inputs.items():
        np.testing.assert_array_equal(inputs[name], array)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad.model}-{bad.says[:30]}")
def test_a_bad_request_is_refused_in_one_line(
    server: triton.InferenceServerClient, bad: Bad
) -> None:
    inputs = example_inputs(GALLERY / bad.model)
    wrong = {**inputs, bad.tensor: bad.change(inputs[bad.tensor])}
    with pytest.raises(triton.InferenceServerException) as refused:
        ask(server, bad.model, wrong)
    assert bad.says in refused.value.message()
    assert "\n" not in refused.value.message().strip()
    ask(server, bad.model, inputs)


def test_cora_is_classified_as_well_as_the_page_says(
    served: dict[str, Any], real_data: Path, tmp_path: Path
) -> None:
    shutil.copytree(real_data / "planetoid", tmp_path / "planetoid")
    graph = tmp_path / "cora.npz"
    train = [sys.executable, GALLERY / "gat" / "train.py", "--data", tmp_path / "planetoid"]
    subprocess.run([*train, "--graph", graph], check=True, capture_output=True)
    said = run_client("gat", served, "--graph", str(graph), "--out", str(tmp_path / "gat.png"))
    assert claimed("gat") == 82.3
    assert re.findall(r"([\d.]+)%", said) == [str(claimed("gat"))]
    assert (tmp_path / "gat.png").stat().st_size > 10_000


def claimed(model: str) -> float:
    """Return the percentage in the gallery's table."""
    page = (CHECKOUT / "docs" / "gallery.md").read_text()
    (found,) = re.findall(rf"^\| \[{model}\]\(.*?\| ([\d.]+)%", page, re.M)
    return float(found)
