"""Start models against the fake backend, as Triton starts them."""

import json
import sys
from collections import Counter
from types import SimpleNamespace

import fake_triton
import pytest
from fake_triton import FakeRuntime
from numl_serving import triton
from numl_serving.triton import TritonPythonModel
from small_models import NUGRAPH3

OUTPUTS = [{"name": "x_filter_u", "dims": ["-1"]}, {"name": "x_semantic_u", "dims": ["-1", "3"]}]
INPUTS = [{"name": tensor.name} for tensor in NUGRAPH3.schema.tensors]
GPU = {"kind": "GPU"}


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
