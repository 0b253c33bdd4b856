"""The glue to Triton, against a fake backend module (`fake_triton` says what it is and why)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import fake_triton
import numpy as np
import pytest
from fake_triton import FakeRuntime, Request
from numl_serving import configuration, triton
from numl_serving.batches import Limits
from numl_serving.errors import EventError, ModelFilesError, one_line
from numl_serving.triton import TritonPythonModel
from small_models import NUGRAPH3, random_event, write_model

OUTPUTS = [{"name": "x_filter_u", "dims": ["-1"]}, {"name": "x_semantic_u", "dims": ["-1", "3"]}]
INPUTS = [{"name": tensor.name} for tensor in NUGRAPH3.schema.tensors]
GPU = {"kind": "GPU"}
MODES = [
    {},
    GPU,
    GPU | {"batch_max_events": "4"},
    GPU | {"batch_max_events": "4", "batch_max_wait_ms": "20"},
]


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


def test_a_start_is_told_phase_by_phase(start):
    start()
    said = re.fullmatch(
        r"nugraph3_0_0 ready (\S+) s after its server's start: "
        r"process (\S+), interpreter (\S+), imports (\S+), weights (\S+), warm-up (\S+)",
        fake_triton.Logger.told[-1],
    )
    whole, *phases = map(float, said.groups())
    assert whole == pytest.approx(sum(phases), abs=0.05)
    assert min(phases) >= 0


def request(first_id=1, hits=3, *, outputs=("x_filter_u", "x_semantic_u"), damage=None, **options):
    tensors = random_event(NUGRAPH3.schema, hits).tensors()
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
def test_an_event_that_would_explode_is_refused_and_its_neighbours_are_answered(start, mode):
    good, bad, other = responses(
        start(**mode), [request(1), request(FakeRuntime.EXPLODES), request(3)]
    )
    assert bad.error.code == "invalid"
    assert str(bad.error) == "the event unfolds into too many edges"
    assert good.outputs["x_filter_u"][0] == 1
    assert other.outputs["x_filter_u"][0] == 3


@pytest.mark.parametrize("mode", MODES)
def test_an_event_that_makes_the_network_fail_fails_alone(start, mode):
    good, bad, other = responses(
        start(**mode), [request(1), request(FakeRuntime.FAILS), request(3)]
    )
    assert bad.error.code == "internal"
    assert str(bad.error) == "the event could not be processed: ValueError: poisoned"
    assert good.outputs["x_filter_u"][0] == 1
    assert other.outputs["x_filter_u"][0] == 3
    assert fake_triton.Logger.lines == ["Traceback: in the network"]


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
    assert len(runtime.batches) == 1  # the warm-up


def test_without_a_worker_no_request_waits_and_none_is_asked_whether_it_is_cancelled(start):
    asked = request()
    asked.is_cancelled = None
    (response,) = responses(start(), [asked])
    assert response.error is None


def executing(model, requests):
    """Return a thread that calls execute with one request at a time, as the backend does."""
    thread = threading.Thread(
        target=lambda: [model.execute([each]) for each in requests], daemon=True
    )
    thread.start()
    return thread


def test_requests_that_wait_together_form_one_batch_and_the_rest_stays_in_tritons_queue(
    start, runtime
):
    model = start(**GPU, batch_max_events="4")
    runtime.gate.clear()
    requests = [request(number) for number in range(1, 31)]
    backend = executing(model, requests)
    backend.join(0.3)
    assert backend.is_alive()
    asked = [each for each in requests if each.was_taken]
    assert len(asked) <= 2 * 4
    runtime.gate.set()
    for number, waiting in enumerate(requests, start=1):
        assert waiting.answer().outputs["x_filter_u"][0] == number
    backend.join(10)
    sizes = runtime.batches[1:]  # the first was the warm-up
    assert sum(sizes) == 30
    assert max(sizes) == 4


def test_waiting_requests_are_answered_before_the_model_is_unloaded(start, runtime):
    model = start(**GPU, batch_max_events="9", batch_max_wait_ms="60000")
    requests = [request(number) for number in range(1, 6)]
    model.execute(requests)
    model.finalize()
    assert [waiting.answer().outputs["x_filter_u"][0] for waiting in requests] == [1, 2, 3, 4, 5]


def ending(code, tmp_path):
    """Run code in a process of its own, that ends itself; return its exit code and output."""
    here = Path(__file__).parent
    start = f"""
import sys, threading
sys.path[:0] = [{str(here)!r}, {str(Path(triton.__file__).parents[1])!r}]
from types import SimpleNamespace
from pathlib import Path
import fake_triton
from fake_triton import FakeRuntime
import test_triton_glue as glue
from numl_serving import triton
sys.modules["triton_python_backend_utils"] = fake_triton
sys.modules["numl_serving.torch_runtime"] = SimpleNamespace(gpu_of=lambda number: "cuda:0")
runtime = FakeRuntime()
triton.Runtime = SimpleNamespace(load=lambda *given, **named: runtime)
fake_triton.Logger.log_error = print
fake_triton.Sender.told = print
model = triton.TritonPythonModel()
model.initialize(glue.arguments(Path({str(tmp_path)!r}), kind="GPU", batch_max_events="2"))
"""
    done = subprocess.run(
        [sys.executable, "-c", start + code], stdout=subprocess.PIPE, text=True, timeout=60
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("LOST", "DeviceLostError: cuda:0 cannot be used any more"),
        ("BUG", "ZeroDivisionError: a bug"),
    ],
)
def test_when_no_answer_can_be_given_any_more_all_that_is_held_gets_an_error_and_the_process_ends(
    tmp_path, kind, reason
):
    """No GPU is lost here: the runtime is a fake."""
    code, said = ending(
        f"""
runtime.gate.clear()
requests = [glue.request(1), glue.request(FakeRuntime.{kind}), glue.request(3), glue.request(4)]
backend = glue.executing(model, requests)
backend.join(0.3)
runtime.gate.set()
threading.Event().wait(30)
""",
        tmp_path,
    )
    assert code == 1
    answers = [line for line in said.splitlines() if line.startswith("answered")]
    assert len(answers) == 4
    assert sum("ending" in line or "any more" in line for line in answers) >= 3
    assert f"this process ends, to be replaced: {reason}" in said


def test_a_request_after_unloading_is_refused(start):
    model = start(**GPU, batch_max_events="2")
    model.finalize()
    (response,) = responses(model, [request()])
    assert response.error.code == "unavailable"


def test_a_response_that_cannot_be_sent_becomes_an_error_response(start):
    model = start(**GPU, batch_max_events="2")
    first, second = responses(model, [request(failures=1), request(5)])
    assert "shared memory" in str(first.error)
    assert second.outputs["x_filter_u"][0] == 5


def test_a_sender_that_always_fails_does_not_stop_the_worker(start):
    model = start(**GPU, batch_max_events="2")
    model.execute([request(failures=9)])
    (response,) = responses(model, [request(5)])
    assert response.outputs["x_filter_u"][0] == 5


@pytest.mark.parametrize("mode", MODES)
def test_metrics_count_events_hits_rejections_and_seconds(start, mode):
    model = start(**mode)
    responses(model, [request(1, hits=3), request(2, hits=5), request(3, damage=1)])
    model.finalize()  # publishes what is not yet published
    values = {name: value for (name, *_), value in fake_triton.MetricFamily.values.items()}
    assert values.pop("nugraph_batch_events") in (1, 2)  # the fake adds what the gauge was set to
    batches = values["nugraph_batches_total"]
    assert values == {
        "nugraph_events_total": 2,
        "nugraph_hits_total": 8,
        "nugraph_rejected_events_total": 1,
        "nugraph_batches_total": batches,
        "nugraph_preprocessing_seconds_total": 0.25 * batches,
        "nugraph_network_seconds_total": 0.5 * batches,
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
    start()
    assert runtime.loaded == (tmp_path / "1", "cpu", 1, Limits())
    assert runtime.batches == [1]


def test_limits_of_batches_are_read(start, runtime):
    start(batch_max_hits="5000", batch_max_edges="70000")
    assert runtime.loaded[-1] == Limits(5000, 70000)


def test_parameters_of_other_times_and_other_programs_are_left_alone(start):
    start(threads="many", compiled="/nowhere", EXECUTION_ENV_PATH="/env")


def test_a_golden_event_is_read_for_the_warm_up(tmp_path):
    write_model(tmp_path)
    event = random_event(NUGRAPH3.schema, 2)
    assert configuration.warm_up_event(tmp_path, NUGRAPH3).num_hits == 0
    np.savez(
        tmp_path / "golden.npz",
        **{f"input/{name}": array for name, array in event.tensors().items()},
        **{"output/x_filter_u": np.zeros(1)},
    )
    assert configuration.warm_up_event(tmp_path, NUGRAPH3).num_hits == 2


def test_a_broken_golden_event_is_named(tmp_path):
    write_model(tmp_path)
    (tmp_path / "golden.npz").write_bytes(b"PK\x03\x04 truncated")
    with pytest.raises(ModelFilesError, match=r"golden\.npz holds no event: \w+"):
        configuration.warm_up_event(tmp_path, NUGRAPH3)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([{"name": "x_other_u", "dims": ["-1"]}], "declares output x_other_u but these weights"),
        ([{"name": "x_semantic_u", "dims": ["-1", "5"]}], "declares 5 as the last dimension of"),
    ],
)
def test_outputs_that_the_weights_do_not_give_are_refused(start, outputs, message):
    with pytest.raises(ModelFilesError, match=message):
        start(outputs=outputs)


@pytest.mark.parametrize("dims", [["4"], ["1", "4"], ["-1", "-1"]])
def test_the_event_score_may_be_declared_without_its_leading_dimension(start, dims):
    start(outputs=[{"name": "e_evt", "dims": dims}])


def test_an_input_that_is_not_declared_is_named(start):
    with pytest.raises(ModelFilesError, match="declares no input hit_table_hit_id, which"):
        start(inputs=INPUTS[1:])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("batch_max_hits", "0"),
        ("batch_max_edges", "many"),
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


def test_a_gpu_instance_in_an_environment_without_torch_is_refused(start, monkeypatch):
    monkeypatch.delitem(sys.modules, "numl_serving.torch_runtime")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelFilesError) as caught:
        start(kind="GPU")
    assert str(caught.value) == (
        "the instance is of KIND_GPU but this environment has no torch: deploy with the GPU "
        "environment or set KIND_CPU in config.pbtxt's instance_group"
    )


@pytest.mark.parametrize("device_id", ["0", "3"])
def test_a_gpu_instance_uses_its_device(start, runtime, device_id):
    """There is no GPU here: it and the runtime are fakes."""
    start(kind="GPU", device_id=device_id)
    assert runtime.loaded[1] == f"cuda:{device_id}"


def test_errors_are_one_line_even_for_long_messages():
    assert one_line(ValueError("first\nsecond")) == "ValueError: first"
    assert one_line(EventError()) == "EventError"
