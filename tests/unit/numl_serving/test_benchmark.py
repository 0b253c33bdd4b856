"""The benchmark's reference answers like our runtime, in its worker and as a Triton model."""

import importlib.util
import io
import json
import os
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import fake_triton
import numpy as np
import pytest
from checkpoint_files import CHECKOUT
from fake_triton import Request
from numl_bench import reference_model
from numl_bench.events import events_of_size
from numl_bench.extension import extended
from numl_bench.paths import GRADIENTS_OFF, GRADIENTS_ON, SERVING
from numl_bench.worker import Worker, serve
from numl_serving.event import Event
from numl_serving.native import NativeModel
from numl_serving.runtime import Runtime
from numl_serving.weights import read_weights
from oracle import KINDS, card_of, random_weights
from small_models import write_model

from numl_formats.card import EXTENSION_FEATURES
from numl_formats.cardfile import read_card
from numl_formats.golden import disagreements

MODELS = CHECKOUT / "model_repository"
NUGRAPH25 = Path(os.environ["NUGRAPH25"])
ENVIRONMENT = Path(reference_model.__file__).parents[1]

simulated = cache(events_of_size)
"""It takes a second until events of a size have come up."""


def model_directory(kind: str, folder: Path) -> Path:
    """Write a model of nugraph's default widths with random weights."""
    card = card_of(kind)
    return write_model(folder, card, random_weights(card, 0))


def assert_measured(answers: str) -> None:
    """Check what a worker says it has measured."""
    for line in answers.splitlines():
        answer = json.loads(line)
        assert answer["differences"] == []
        assert {GRADIENTS_ON, GRADIENTS_OFF, SERVING} == set(answer["times"])
        for rounds in answer["times"].values():
            preprocess, network, event, cpu = np.array(rounds)[0].T
            assert (preprocess + network <= event).all()
            assert (cpu > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_worker_finds_equal_answers_and_times_every_path(kind, tmp_path):
    sets = {"120 hits": simulated(120, 2, seed=1)}
    worker = Worker(sets, model_directory(kind, tmp_path / "m"), NUGRAPH25)
    command = json.dumps({"events": "120 hits", "seconds": 0})
    answers = io.StringIO()
    serve(worker, io.StringIO(f"{command}\n{command}\n"), answers)
    assert_measured(answers.getvalue())


def test_the_extension_is_measured_on_a_network_that_answers_as_the_one_without():
    card = read_card(MODELS / "nugraph3" / "1" / "model.json")
    weights = read_weights(MODELS / "nugraph3" / "1", card)
    wide, more = extended(card, weights)
    assert wide.hit_features[-4:] == EXTENSION_FEATURES
    event = Event.from_tensors(simulated(120, 2, seed=1)[0], card.schema)
    one, two = NativeModel(card, weights).infer(event), NativeModel(wide, more).infer(event)
    assert disagreements(one, two) == []


@pytest.mark.parametrize(
    ("kind", "gradients"), [*((kind, "on") for kind in KINDS), (KINDS[0], "off")]
)
def test_the_reference_served_by_triton_answers_as_ours_does(
    kind, gradients, tmp_path, monkeypatch
):
    """Against a fake of the backend's module (`fake_triton`): the real one is in a server only."""
    fake_triton.MetricFamily.values = Counter()
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake_triton)
    # Today's code asks for arrays, which is right with its numpy 1.
    monkeypatch.setattr(fake_triton.Tensor, "as_numpy", lambda t: t._array, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = model_directory(kind, tmp_path / "m")
    event = simulated(120, 2, seed=1)[0]
    golden = {f"input/{name}": array for name, array in event.items()}
    np.savez(folder / "golden.npz", **golden)
    # As Triton does: the file is copied, and knows its package by the parameter alone.
    spec = importlib.util.spec_from_file_location("model", reference_model.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parameters = {
        "numl_bench": str(ENVIRONMENT),
        "nugraph25": str(NUGRAPH25),
        "threads": "1",
        "gradients": gradients,
    }
    config = {"parameters": {name: {"string_value": v} for name, v in parameters.items()}}
    model = module.TritonPythonModel()
    model.initialize(
        {
            "model_config": json.dumps(config),
            "model_repository": str(folder.parent),
            "model_version": folder.name,
            "model_name": "m_today",
        }
    )
    expected = Runtime.load(folder).infer(Event.from_tensors(event))
    (response,) = model.execute([Request(event, list(expected))])
    assert disagreements(expected, response.outputs) == []
    model.finalize()
    counted = fake_triton.MetricFamily.values
    assert counted["nugraph_events_total", "m_today", folder.name] == 1
