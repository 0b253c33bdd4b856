"""Start models against the fake backend, as Triton starts them."""

import json
import sys
from collections import Counter
from types import SimpleNamespace

import fake_triton
import numpy as np
import pytest
from fake_triton import FakeRuntime, Request
from numl_serving import triton
from numl_serving.triton import TritonPythonModel
from small_models import NUGRAPH3, random_event

OUTPUTS = [{"name": "x_filter_u", "dims": ["-1"]}, {"name": "x_semantic_u", "dims": ["-1", "3"]}]
INPUTS = [{"name": tensor.name} for tensor in NUGRAPH3.schema.tensors]
GPU = {"kind": "GPU"}
MODES = [
    {},
    GPU,
    GPU | {"batch_max_events": "4"},
    GPU | {"batch_max_events": "4", "batch_max_wait_ms": "20"},
]


def request(first_id=1, hits=3, *, outputs=("x_filter_u", "x_semantic_u"), damage=None, **options):
    tensors = random_event(0, hits).tensors()
    tensors["hit_table_hit_id"] = np.arange(first_id, first_id + hits, dtype=np.int32)
    if damage is not None:
        tensors["hit_table_rms"] = tensors["hit_table_rms"].copy()
        tensors["hit_table_rms"][damage] = np.nan
    return Request(tensors, list(outputs), **options)


def responses(model, requests):
    """Pass requests through execute and return their responses, in either mode."""
    if model._worker is None:
        answers = model.execute(requests)
    else:
        for request in requests:  # one at a time, as the backend does
            assert model.execute([request]) is None
        answers = [request.answer() for request in requests]
    assert len(answers) == len(requests)
    return answers


def arguments(tmp_path, *, inputs=INPUTS, outputs=OUTPUTS, kind="CPU", device_id="0", **parameters):
    (tmp_path / "1").mkdir(exist_ok=True)
    config = {
        "input": inputs,
        "output": outputs,
        "parameters": {name: {"string_value": text} for name, text in parameters.items()},
    }
    return {
        "model_config": json.dumps(config),
        "model_repository": str(tmp_path),
        "model_version": "1",
        "model_name": "nugraph3",
        "model_instance_name": "nugraph3_0_0",
        "model_instance_kind": kind,
        "model_instance_device_id": device_id,
    }


@pytest.fixture
def runtime(monkeypatch):
    """Put the fakes in place of the backend's module, of the runtime and of a GPU."""
    fake = FakeRuntime()

    def load(directory, *, device, threads, limits):
        fake.loaded = (directory, device, threads, limits)
        return fake

    gpu = SimpleNamespace(gpu_of=lambda device_id: f"cuda:{device_id}")
    monkeypatch.setitem(sys.modules, "numl_serving.torch_runtime", gpu)

    fake_triton.MetricFamily.values = Counter()
    fake_triton.MetricFamily.broken = False
    fake_triton.Logger.lines = []
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake_triton)
    monkeypatch.setattr(triton, "Runtime", SimpleNamespace(load=load))
    return fake


@pytest.fixture
def start(tmp_path, runtime):
    """Start models; finalize them at the end."""
    started = []

    def _start(**parameters):
        model = TritonPythonModel()
        model.initialize(arguments(tmp_path, **parameters))
        started.append(model)
        return model

    yield _start
    runtime.gate.set()
    for model in started:
        model.finalize()
