"""What a model tells Triton of its work, against a fake backend module (`fake_triton`)."""

import subprocess
import sys
import textwrap
import time

import fake_triton
import pytest
from triton_models import GPU, MODES, request, responses


@pytest.mark.parametrize("mode", MODES)
def test_metrics_count_events_hits_rejections_and_seconds(start, mode):
    model = start(**mode)
    responses(model, [request(1, hits=3), request(2, hits=5), request(3, damage=1)])
    model.finalize()  # publishes what is not yet published
    values = {name: value for (name, *_), value in fake_triton.MetricFamily.values.items()}
    assert values.pop("nugraph_batch_events") in (1, 2)  # what the last batch had
    assert values.pop("nugraph_queue_duration_us", 0) > 0 or mode == {}
    assert values.pop("nugraph_pending_request_count", 0) == 0
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


def test_requests_that_wait_for_the_worker_are_counted_with_their_time(start, runtime):
    """Triton's own queue is empty meanwhile."""
    model = start(**GPU, batch_max_events="1", most_waiting="4")
    runtime.gate.clear()
    requests = [request(number) for number in range(6)]
    model.execute(requests[:1])
    key = ("nugraph_pending_request_count", "nugraph3", "1")
    values = fake_triton.MetricFamily.values
    for batch, waiting in ((requests[1:3], 2), (requests[3:], 4)):  # the sixth is refused
        deadline = time.monotonic() + 10
        model.execute(batch)
        while values[key] != waiting:
            assert time.monotonic() < deadline, values[key]
            time.sleep(0.01)
    runtime.gate.set()
    model.finalize()
    assert sum(each.answer().error is None for each in requests) == 5
    assert values[key] == 0
    assert values["nugraph_queue_duration_us", "nugraph3", "1"] > 4e4


def test_metrics_are_published_while_the_model_serves(start):
    model = start()
    for number in range(3):
        responses(model, [request(number)])
        deadline = time.monotonic() + 10
        key = ("nugraph_events_total", "nugraph3", "1")
        while fake_triton.MetricFamily.values[key] <= number:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_no_metric_is_collected_even_when_its_process_ends():
    """Triton would drop it for other processes, too; at the end, the stub would crash."""
    code = """
        import gc, os
        from numl_serving.metrics import Metrics

        class Lasting:
            COUNTER = GAUGE = None

            def __init__(self, **_): ...
            def __del__(self, tell=os.write): tell(1, b"collected")
            def Metric(self, labels): return Lasting()
            def increment(self, count): ...
            def set(self, value): ...

        class Triton:
            MetricFamily = Lasting

        metrics = Metrics(Triton, {}, print, "worker")
        metrics.count_batch(events=1, hits=1, preprocess_s=1, network_s=1)
        metrics.close()
        del metrics
        gc.collect()
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_broken_metrics_cost_no_answer(start, mode, when, monkeypatch):
    monkeypatch.setattr(fake_triton.MetricFamily, "broken", when == "before")
    model = start(**mode)
    monkeypatch.setattr(fake_triton.MetricFamily, "broken", True)
    good, bad = responses(model, [request(1), request(2, damage=0)])
    assert good.error is None
    assert bad.error is None or bad.error.code == "invalid"
    model.finalize()
    assert len(fake_triton.Logger.lines) == 1
