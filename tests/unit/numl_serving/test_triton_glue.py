"""The glue to Triton, against a fake backend module (`fake_triton` says what it is and why)."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import fake_triton
import numpy as np
import pytest
import torch
from fake_triton import FakeRuntime, Request
from numl_serving import triton
from numl_serving.batching import BatchWorker
from numl_serving.errors import EventError, ModelFilesError
from numl_serving.triton import TritonPythonModel
from strategies import make_tensors

OUTPUTS = [{"name": "x_filter_u", "dims": ["-1"]}, {"name": "x_semantic_u", "dims": ["-1", "7"]}]
MODES = [{}, {"batch_max_events": "4"}, {"batch_max_events": "4", "batch_max_wait_ms": "20"}]


def arguments(tmp_path, *, outputs=OUTPUTS, kind="CPU", device_id="0", **parameters):
    (tmp_path / "1").mkdir(exist_ok=True)
    config = {
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
    """Put the fakes in place of the backend's module and of the runtime."""
    fake = FakeRuntime()

    def load(directory, *, device, threads, compiled):
        fake.loaded = (directory, device, threads)
        fake.compiled = compiled
        return fake

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


@pytest.mark.parametrize("how", ["compiled", "uncompiled"])
def test_a_start_is_told_phase_by_phase(start, runtime, how):
    runtime.is_compiled = how == "compiled"
    start()
    said = re.fullmatch(
        r"nugraph3_0_0 ready (\S+) s after its server's start: "
        r"process (\S+), interpreter (\S+), imports (\S+), weights (\S+), warm-up (\S+); (\w+)",
        fake_triton.Logger.told[-1],
    )
    *seconds, told = said.groups()
    assert told == how
    whole, *phases = map(float, seconds)
    assert whole == pytest.approx(sum(phases), abs=0.05)
    assert min(phases) >= 0


def request(first_id=1, hits=3, *, outputs=("x_filter_u", "x_semantic_u"), damage=None, **options):
    tensors = make_tensors([0] * hits, range(hits), range(hits), hit_id=first_id + np.arange(hits))
    if damage:
        tensors["hit_table_rms"][damage] = np.nan
    return Request(tensors, list(outputs), **options)


def responses(model, requests):
    """Pass requests through execute and return their responses, in either mode."""
    answers = model.execute(requests)
    if answers is None:
        answers = [request.answer() for request in requests]
    assert len(answers) == len(requests)
    return answers


@pytest.mark.parametrize("mode", MODES)
def test_every_request_gets_its_own_answer(start, mode):
    model = start(**mode)
    requests = [request(100 * number) for number in range(9)]
    for number, response in enumerate(responses(model, requests)):
        assert response.error is None
        np.testing.assert_array_equal(
            response.outputs["x_filter_u"], 100 * number + np.arange(3, dtype=np.float32)
        )


@pytest.mark.parametrize("mode", MODES)
def test_only_requested_outputs_are_returned(start, mode):
    (response,) = responses(start(**mode), [request(outputs=["x_semantic_u"])])
    assert list(response.outputs) == ["x_semantic_u"]


@pytest.mark.parametrize("mode", MODES)
def test_an_invalid_event_is_told_why_and_its_neighbours_are_answered(start, mode):
    good, bad, other = responses(start(**mode), [request(1), request(2, damage=1), request(3)])
    assert bad.error.code == "invalid"
    assert str(bad.error) == "hit_table.rms is nan in row 1: values must be finite"
    assert good.outputs["x_filter_u"][0] == 1
    assert other.outputs["x_filter_u"][0] == 3


@pytest.mark.parametrize("mode", MODES)
def test_an_event_that_makes_the_network_fail_fails_alone(start, mode):
    good, bad, other = responses(
        start(**mode), [request(1), request(FakeRuntime.POISON), request(3)]
    )
    assert bad.error.code == "internal"
    assert str(bad.error) == "the event could not be processed: ValueError: poisoned"
    assert good.outputs["x_filter_u"][0] == 1
    assert other.outputs["x_filter_u"][0] == 3
    assert "infer_batch" in fake_triton.Logger.lines[-1]  # the traceback goes to the log


@pytest.mark.parametrize("mode", MODES)
def test_an_unforeseen_failure_while_reading_a_request_is_its_own(start, mode, monkeypatch):
    model, bad = start(**mode), request()
    monkeypatch.setattr(bad, "inputs", lambda: [None])
    first, second = responses(model, [bad, request(5)])
    assert first.error.code == "internal"
    assert second.outputs["x_filter_u"][0] == 5


@pytest.mark.parametrize("mode", MODES)
def test_an_unknown_output_is_an_error_of_its_request(start, mode):
    first, second = responses(start(**mode), [request(outputs=["x"]), request(5)])
    assert first.error.code == "internal"
    assert second.outputs["x_filter_u"][0] == 5


@pytest.mark.parametrize("mode", MODES[1:])
def test_a_request_that_was_cancelled_while_it_waited_is_answered_without_work(
    start, mode, runtime
):
    (response,) = responses(start(**mode), [request(cancelled=True)])
    assert response.error.code == "cancelled"
    assert not runtime.batches


def test_without_a_worker_no_request_waits_and_none_is_asked_whether_it_is_cancelled(start):
    asked = request()
    asked.is_cancelled = None
    (response,) = responses(start(), [asked])
    assert response.error is None


def test_a_batch_with_a_poisoned_event_is_split(start, runtime):
    model = start(batch_max_events="4")
    runtime.gate.clear()
    requests = [request(1), *(request(10 * number) for number in range(2, 5))]
    requests.append(request(FakeRuntime.POISON))
    model.execute(requests)
    runtime.gate.set()
    answers = [waiting.answer() for waiting in requests]
    assert [answer.error is None for answer in answers] == [True] * 4 + [False]


def test_requests_that_wait_together_form_one_batch(start, runtime):
    model = start(batch_max_events="4")
    runtime.gate.clear()
    requests = [request(number) for number in range(1, 10)]
    for waiting in requests:
        model.execute([waiting])
    runtime.gate.set()
    for waiting in requests:
        waiting.answer()
    assert sum(runtime.batches) == 9
    assert max(runtime.batches) == 4


def test_waiting_requests_are_answered_before_the_model_is_unloaded(start, runtime):
    model = start(batch_max_events="2", batch_max_wait_ms="60000")
    requests = [request(number) for number in range(1, 6)]
    model.execute(requests)
    model.finalize()
    assert [waiting.answer().outputs["x_filter_u"][0] for waiting in requests] == [1, 2, 3, 4, 5]


def test_a_request_after_unloading_is_refused(start):
    model = start(batch_max_events="2")
    model.finalize()
    (response,) = responses(model, [request()])
    assert response.error.code == "unavailable"


def test_a_response_that_cannot_be_sent_becomes_an_error_response(start):
    model = start(batch_max_events="2")
    first, second = responses(model, [request(failures=1), request(5)])
    assert "shared memory" in str(first.error)
    assert second.outputs["x_filter_u"][0] == 5


def test_a_sender_that_always_fails_does_not_stop_the_worker(start):
    model = start(batch_max_events="2")
    model.execute([request(failures=9)])
    (response,) = responses(model, [request(5)])
    assert response.outputs["x_filter_u"][0] == 5


@pytest.mark.parametrize("mode", MODES)
def test_metrics_count_events_hits_rejections_and_seconds(start, mode):
    model = start(**mode)
    responses(model, [request(1, hits=3), request(2, hits=5), request(3, damage=1)])
    model.finalize()  # publishes what is not yet published
    values = {name: value for (name, *_), value in fake_triton.MetricFamily.values.items()}
    batches = values["nugraph_batches_total"]
    assert values == {
        "nugraph_events_total": 2,
        "nugraph_hits_total": 8,
        "nugraph_rejected_events_total": 1,
        "nugraph_batches_total": batches,
        "nugraph_preprocessing_seconds_total": 0.25 * batches,
        "nugraph_network_seconds_total": 0.5 * batches,
        "nugraph_batch_events": 2,  # the fake adds what the gauge was set to
    }
    assert {key[1:] for key in fake_triton.MetricFamily.values} == {("nugraph3", "1")}


def test_metrics_are_published_while_the_model_serves(start):
    model = start()
    for number in range(3):
        responses(model, [request(number)])
        deadline = time.monotonic() + 10
        key = ("nugraph_events_total", "nugraph3", "1")
        while fake_triton.MetricFamily.values[key] <= number:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_broken_metrics_cost_no_answer(start, mode, when):
    fake_triton.MetricFamily.broken = when == "before"
    model = start(**mode)
    fake_triton.MetricFamily.broken = True
    good, bad = responses(model, [request(1), request(2, damage=0)])
    assert good.error is None
    assert bad.error is None or bad.error.code == "invalid"
    model.finalize()
    assert len(fake_triton.Logger.lines) == 1


def test_initialize_loads_the_version_directory_and_warms_up(start, runtime, tmp_path):
    start(threads="3", compiled="/compiled")
    assert runtime.loaded == (tmp_path / "1", "cpu", 3)
    assert runtime.compiled == "/compiled"


def test_without_a_folder_of_compiled_networks_the_environment_s_own_are_used(
    start, runtime, tmp_path, monkeypatch
):
    start()
    assert runtime.compiled is None
    folder = tmp_path / "lib" / "numl_serving" / "compiled"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    start()
    assert runtime.compiled == folder


def test_a_golden_event_is_read_for_the_warm_up(tmp_path):
    tensors = make_tensors([0, 1], [5, 6], [7, 8])
    np.savez(
        tmp_path / "golden.npz",
        **{f"input/{name}": array for name, array in tensors.items()},
        **{"output/x_filter_u": np.zeros(1)},
    )
    assert len(triton.warm_up_event(tmp_path).hits) == 2


def test_a_broken_golden_event_is_named(tmp_path):
    (tmp_path / "golden.npz").write_bytes(b"PK\x03\x04 truncated")
    with pytest.raises(ModelFilesError, match=r"golden\.npz holds no event: \w+"):
        triton.warm_up_event(tmp_path)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([{"name": "v_evt", "dims": ["1", "3"]}], "declares output v_evt but these weights give"),
        ([{"name": "x_semantic_u", "dims": ["-1", "5"]}], "declares 5 as the last dimension of"),
    ],
)
def test_outputs_that_the_weights_do_not_give_are_refused(start, outputs, message):
    with pytest.raises(ModelFilesError, match=message):
        start(outputs=outputs)


def test_the_event_score_may_be_declared_without_its_leading_dimension():
    triton.check_outputs([{"name": "e_evt", "dims": ["4"]}], {"e_evt": np.zeros((1, 4))})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("threads", "0"),
        ("threads", "two"),
        ("batch_max_events", "1.5"),
        ("batch_max_wait_ms", "-1"),
        ("batch_max_wait_ms", "nan"),
        ("batch_max_wait_ms", "inf"),
    ],
)
def test_a_wrong_parameter_is_named_with_its_value(start, name, text):
    with pytest.raises(ModelFilesError, match=f"^parameter {name} in config.pbtxt is '{text}'"):
        start(**{name: text})


def test_the_right_environment_is_accepted(start, tmp_path, monkeypatch):
    (tmp_path / "numlkit-environment.json").write_text('{"digest": "abc"}')
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    start(environment_digest="abc")


@pytest.mark.parametrize(
    ("content", "found"),
    [('{"digest": "xyz"}', "xyz"), (None, "none"), ("{", "none"), ("[]", "none"), ("{}", "none")],
)
def test_a_wrong_environment_is_refused_with_its_prefix(
    start, tmp_path, monkeypatch, content, found
):
    if content is not None:
        (tmp_path / "numlkit-environment.json").write_text(content)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(
        ModelFilesError, match=f"sys.prefix {tmp_path} has digest {found}"
    ) as caught:
        start(environment_digest="abc")
    assert "\n" not in str(caught.value)


def test_an_environment_of_another_python_is_refused_although_its_digest_is_right(
    start, tmp_path, monkeypatch
):
    """A virtual environment's prefix is what any Python takes for its own that finds it."""
    (tmp_path / "numlkit-environment.json").write_text('{"digest": "abc", "python": "3.1.4"}')
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(
        ModelFilesError, match=rf"{tmp_path} is for Python 3\.1\.4, this is Python 3\."
    ) as caught:
        start(environment_digest="abc")
    assert "\n" not in str(caught.value)


def test_an_environment_of_this_python_is_accepted(start, tmp_path, monkeypatch):
    """Another patch release is no other Python."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}.99"
    facts = json.dumps({"digest": "abc", "python": python})
    (tmp_path / "numlkit-environment.json").write_text(facts)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    start(environment_digest="abc")


def test_a_gpu_instance_in_an_environment_for_cpus_is_refused(start, monkeypatch):
    monkeypatch.setattr("torch.version.cuda", None)
    with pytest.raises(ModelFilesError) as caught:
        start(kind="GPU")
    assert str(caught.value) == (
        f"the instance is of KIND_GPU but torch {torch.__version__} cannot use a GPU: deploy with "
        "the GPU environment or set KIND_CPU in config.pbtxt's instance_group"
    )


def test_a_gpu_instance_without_a_usable_gpu_is_refused(start, monkeypatch):
    """What CUDA says when the driver is too old is the same as when there is no GPU."""
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ModelFilesError) as caught:
        start(kind="GPU")
    assert str(caught.value) == (
        f"the instance is of KIND_GPU but torch {torch.__version__} for CUDA 13.0 finds no GPU "
        "that it can use: the host's driver is too old for it (nvidia-smi), or the server was "
        "given no GPU (CUDA_VISIBLE_DEVICES)"
    )


@pytest.mark.parametrize("device_id", ["0", "3"])
def test_a_gpu_instance_uses_its_device(start, runtime, monkeypatch, device_id):
    """There is no GPU here: torch is told that there is one, and the runtime is a fake."""
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    start(kind="GPU", device_id=device_id)
    assert runtime.loaded[1] == f"cuda:{device_id}"


def test_errors_are_one_line_even_for_long_messages():
    assert triton._one_line(ValueError("first\nsecond")) == "ValueError: first"
    assert triton._one_line(EventError()) == "EventError"


def test_a_worker_handles_items_in_order_and_drains_at_the_end():
    batches = []
    worker = BatchWorker(batches.append, max_items=3, max_wait_s=60)
    for item in range(8):
        assert worker.submit(item)
    worker.close()
    assert [item for batch in batches for item in batch] == list(range(8))
    assert all(1 <= len(batch) <= 3 for batch in batches)
    assert not worker.submit(9)
    worker.close()  # a second time does nothing


def test_a_worker_waits_no_longer_than_asked_for_a_full_batch():
    handled = threading.Event()
    worker = BatchWorker(lambda batch: handled.set(), max_items=100, max_wait_s=0.05)
    start = time.monotonic()
    worker.submit(1)
    assert handled.wait(10)
    assert time.monotonic() - start >= 0.05
    worker.close()


def test_a_worker_hands_a_full_batch_over_at_once():
    handled = threading.Event()
    worker = BatchWorker(lambda batch: handled.set(), max_items=2, max_wait_s=60)
    worker.submit(1)
    assert not handled.wait(0.05)
    worker.submit(2)
    assert handled.wait(10)
    worker.close()
