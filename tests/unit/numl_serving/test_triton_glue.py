"""The glue to Triton, against a fake backend module (`fake_triton` says what it is and why)."""

import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import fake_triton
import numpy as np
import pytest
from fake_triton import FakeRuntime, Request
from numl_serving import triton
from small_models import random_event
from triton_models import GPU, MODES, request, responses


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


def unreadable():
    bad = request()
    bad.inputs = lambda: [None]
    return bad


FAILED = "the event could not be processed: "
TRACE = "Traceback (most recent call last):"
BAD = {
    "an invalid event": (
        lambda: request(damage=1),
        ("invalid", "hit_table.rms is nan in row 1: values must be finite"),
        [],
    ),
    "an event that would explode": (
        lambda: request(FakeRuntime.EXPLODES),
        ("invalid", "the event unfolds into too many edges"),
        [],
    ),
    "an event at which the network fails": (
        lambda: request(FakeRuntime.FAILS),
        ("internal", f"{FAILED}ValueError: poisoned"),
        ["Traceback: in the network"],
    ),
    "an input that cannot be read": (
        unreadable,
        ("internal", f"{FAILED}AttributeError: 'NoneType' object has no attribute 'name'"),
        [TRACE],
    ),
    "an output that there is not": (
        lambda: request(outputs=["x"]),
        ("internal", f"{FAILED}KeyError: 'x'"),
        [TRACE],
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("make", "told", "logged"), BAD.values(), ids=BAD)
def test_a_bad_request_is_told_why_and_its_neighbours_are_answered(start, mode, make, told, logged):
    good, bad, other = responses(start(**mode), [request(1), make(), request(3)])
    assert (bad.error.code, str(bad.error)) == told
    assert good.outputs["x_filter_u"][0] == 1
    assert other.outputs["x_filter_u"][0] == 3
    assert [line.partition("\n")[0] for line in fake_triton.Logger.lines] == logged


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


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only where a test says so, as ``clock.now``."""
    fake = SimpleNamespace(now=0.0, monotonic=lambda: fake.now)
    monkeypatch.setattr(triton, "time", fake)
    return fake


def busy(model, runtime):
    """Have a model at work on a request until the runtime's gate opens; return the request."""
    runtime.gate.clear()
    runtime.reached.clear()
    first = request()
    model.execute([first])
    assert runtime.reached.wait(10)
    return first


@pytest.mark.parametrize("longest_wait_s", ["0", "60"])
def test_a_request_that_has_waited_for_its_own_timeout_is_refused_without_work(
    start, runtime, clock, longest_wait_s
):
    model = start(**GPU, batch_max_events="1", most_waiting="9", longest_wait_s=longest_wait_s)
    requests = [request(2, timeout=1000), request(3, timeout=60_000_000), request(4)]
    first = busy(model, runtime)
    model.execute(requests)
    clock.now += 0.05
    runtime.gate.set()
    late, patient, other = (each.answer() for each in requests)
    assert late.error.code == "unavailable"
    assert str(late.error).startswith("Request timeout expired: try again in ")
    assert [each.error for each in (first.answer(), patient, other)] == [None] * 3
    assert sum(runtime.batches) == 1 + 3  # the first was the warm-up


def test_a_long_timeout_does_not_lengthen_the_model_s_own(start, runtime, clock):
    model = start(**GPU, batch_max_events="1", most_waiting="9", longest_wait_s="20")
    patient = request(2, timeout=60_000_000)
    first = busy(model, runtime)
    model.execute([patient])
    clock.now += 30
    runtime.gate.set()
    assert first.answer().error is None
    assert patient.answer().error.code == "unavailable"


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
from triton_models import arguments
from numl_serving import triton
sys.modules["triton_python_backend_utils"] = fake_triton
sys.modules["numl_serving.torch_runtime"] = SimpleNamespace(gpu_of=lambda number: "cuda:0")
runtime = FakeRuntime()
triton.Runtime = SimpleNamespace(load=lambda *given, **named: runtime)
fake_triton.Logger.log_error = print
fake_triton.Sender.told = print
model = triton.TritonPythonModel()
model.initialize(arguments(Path({str(tmp_path)!r}), kind="GPU", batch_max_events="2"))
"""
    done = subprocess.run(
        [sys.executable, "-u", "-c", start + code], stdout=subprocess.PIPE, text=True, timeout=60
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
    assert sum("shutting down" in line or "any more" in line for line in answers) >= 3
    assert f"this process exits, to be replaced: {reason}" in said


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


@pytest.mark.parametrize(
    ("hits", "spacepoints", "refused"),
    [
        (20, 60, None),
        (21, 0, "hit_table has 21 rows: this server accepts at most 20 (limits.hits in its"),
        (1, 61, "spacepoint_table has 61 rows: this server accepts at most 60 (limits.hits in"),
    ],
)
def test_an_event_that_is_larger_than_the_limit_is_refused_before_its_content_is_read(
    start, hits, spacepoints, refused
):
    model = start(max_hits="20")
    tensors = random_event(0, 3).tensors()
    for name, column in tensors.items():
        rows = hits if name.startswith("hit_table") else spacepoints
        tensors[name] = np.full(rows, 0, column.dtype)
    if refused:
        tensors["hit_table_rms"] = np.full(hits, np.nan, np.float32)
    (answer,) = responses(model, [Request(tensors, ["x_filter_u"])])
    if refused is None:
        assert answer.error is None
    else:
        assert str(answer.error).startswith(refused)
        assert answer.error.code == fake_triton.TritonError.INVALID_ARG
