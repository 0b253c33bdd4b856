"""Sending events. The transport is a fake; a real Triton is met in tests/integration."""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from deploy.client.transport import ServedModel
from deploy.events import inference
from deploy.events.answers import assemble, probabilities
from deploy.events.files import EventTensors
from deploy.events.inference import Answer, Failure, ServerLostError, infer
from deploy.host.errors import ClientError, KitError, NoAnswerError, RequestError, ServerAwayError
from tests.unit.deploy.events.played import MODEL, Fake, labels

UVY = ("u", "v", "y")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(inference, "PATIENCE_S", 0.3)


def make_event(number: int, hits: int = 6) -> EventTensors:
    tensors: dict[str, NDArray[Any]] = {
        "hit_table_hit_id": np.arange(hits, dtype=np.int32),
        "hit_table_local_plane": (np.arange(hits) % 3).astype(np.int32),
    }
    return EventTensors((1, 1, number), "a.h5", MappingProxyType(tensors))


def outputs_for(tensors: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return labels(tensors, 7, lambda ids: ids / 10)


Behave = Callable[[Mapping[str, Any]], dict[str, Any]]


class FakeTransport(Fake):
    """Stands in for a server: calls ``behave`` for each request."""

    closed = False

    def __init__(self, behave: Behave) -> None:
        self.behave = behave

    def infer(self, model: ServedModel, tensors: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        return self.behave(tensors)

    def close(self) -> None:
        self.closed = True


Outcomes = list[Answer | Failure]


def sent(events: Iterable[Any], behave: Behave, **how: Any) -> Outcomes:
    """Return what becomes of events that go to servers of this behaviour."""
    return list(infer(events, MODEL, lambda: FakeTransport(behave), **how))


def failing(error: Exception, when: Callable[[int], bool]) -> Behave:
    """Fail at events with so many hits, and answer the others."""

    def behave(tensors: Mapping[str, Any]) -> dict[str, Any]:
        if when(len(tensors["hit_table_hit_id"])):
            raise error
        return outputs_for(tensors)

    return behave


def numbers(outcomes: Outcomes) -> list[tuple[int, bool]]:
    """Return each event's number, and whether it was answered."""
    return [
        (outcome.labels.event.event_id[2], True)
        if isinstance(outcome, Answer)
        else (outcome.event_id[2], False)
        for outcome in outcomes
    ]


def test_threads_that_cannot_be_started_are_told_and_those_that_were_end(monkeypatch):
    start, before = threading.Thread.start, threading.active_count()

    def limited(thread: threading.Thread) -> None:
        if threading.active_count() > before + 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(KitError, match="no more threads can be started"):
        sent([], outputs_for, concurrency=16)
    assert threading.active_count() == before


@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_answers_come_in_the_order_of_the_events(concurrency):
    def slow_for_some(tensors: Mapping[str, Any]) -> dict[str, Any]:
        time.sleep(0.002 * (len(tensors["hit_table_hit_id"]) % 4))
        return outputs_for(tensors)

    events = [make_event(i, hits=i) for i in range(20)]
    outcomes = sent(events, slow_for_some, concurrency=concurrency)
    assert numbers(outcomes) == [(i, True) for i in range(20)]


def test_no_more_requests_are_under_way_than_asked_for_and_events_are_read_late():
    lock, now, most, read = threading.Lock(), 0, 0, 0

    def count(tensors: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.003)
        with lock:
            now -= 1
        return outputs_for(tensors)

    def events() -> Any:
        nonlocal read
        for i in range(40):
            read += 1
            yield make_event(i)

    outcomes = infer(events(), MODEL, lambda: FakeTransport(count), concurrency=3)
    next(outcomes)
    assert read <= 7
    assert len(list(outcomes)) == 39
    assert 1 < most <= 3


@pytest.mark.parametrize(
    ("error", "reason", "refused"),
    [
        (RequestError("row 1 is NaN"), "row 1 is NaN", True),
        (NoAnswerError("no answer within 60 s"), "no answer within 60 s", False),
        (ClientError("a proxy answers with HTTP 403"), "a proxy answers with HTTP 403", False),
        (ServerAwayError("try again in 1 s"), "try again in 1 s", False),  # or it killed the server
        (ZeroDivisionError(), "ZeroDivisionError", False),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.usefixtures("quick")
def test_an_event_fails_alone_and_only_what_the_model_refuses_is_refused_for_good(
    error, reason, refused, concurrency
):
    events = [make_event(i, hits=i) for i in range(6)]
    outcomes = sent(events, failing(error, lambda hits: hits == 3), concurrency=concurrency)
    assert numbers(outcomes) == [(i, i != 3) for i in range(6)]
    assert outcomes[3] == Failure((1, 1, 3), "a.h5", reason, refused=refused)


@pytest.mark.usefixtures("quick")
def test_a_server_that_comes_back_is_waited_for():
    asked = itertools.count()

    def away_at_first(tensors: Mapping[str, Any]) -> dict[str, Any]:
        if next(asked) < 4:
            raise ServerAwayError("connection refused")
        return outputs_for(tensors)

    events = [make_event(i) for i in range(8)]
    outcomes = sent(events, away_at_first)
    assert numbers(outcomes) == [(i, True) for i in range(8)]
    assert sum(o.retries for o in outcomes if isinstance(o, Answer)) == 4


@pytest.mark.usefixtures("quick")
def test_a_server_that_stays_away_ends_the_run_after_its_budget():
    away = failing(ServerAwayError("http://h:8000: connection refused"), lambda hits: hits >= 3)
    events = [make_event(i, hits=i) for i in range(1000)]
    outcomes: list[Answer | Failure] = []
    started = time.monotonic()
    run = infer(events, MODEL, lambda: FakeTransport(away))
    with pytest.raises(ServerLostError, match=r"unreachable for 0\.3 s: http.* refused"):
        outcomes.extend(run)
    assert time.monotonic() - started < 60, "the budget is the run's, not each event's"
    assert numbers(outcomes) == [(0, True), (1, True), (2, True), (3, False)]


def test_every_connection_is_closed():
    opened: list[FakeTransport] = []

    def connect() -> FakeTransport:
        opened.append(FakeTransport(outputs_for))
        return opened[-1]

    assert len(list(infer([make_event(i) for i in range(9)], MODEL, connect))) == 9
    assert opened
    assert all(t.closed for t in opened)


def test_a_stop_ends_the_run_while_a_request_is_under_way():
    stop = threading.Event()

    def slow(tensors: Mapping[str, Any]) -> dict[str, Any]:
        if len(tensors["hit_table_hit_id"]) == 2:
            stop.set()
            time.sleep(0.5)
        return outputs_for(tensors)

    events = [make_event(i, hits=i) for i in range(50)]
    outcomes = sent(events, slow, concurrency=1, stop=stop)
    assert len(outcomes) <= 2


def test_threads_that_hang_at_the_end_are_waited_for_together(monkeypatch):
    waited: list[float] = []

    class Hung(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            waited.append(timeout)

    clock = SimpleNamespace(monotonic=lambda: sum(waited))
    monkeypatch.setattr(inference, "time", clock)
    inference._join([Hung() for _ in range(8)])
    assert (len(waited), sum(waited)) == (8, 2.0)


@pytest.mark.parametrize("hits", [0, 10])
def test_scores_go_back_to_the_order_of_the_hits(hits):
    event = make_event(0, hits=hits)
    labels = assemble(event, outputs_for(event.tensors), UVY)
    assert labels.hits["x_semantic"].shape == (hits, 7)
    assert labels.label.tolist() == [i % 7 for i in range(hits)]
    assert labels.score.tolist() == hits * [1]
    assert np.allclose(labels.hits["x_filter"], np.arange(hits) / 10)
    assert labels.noise.tolist() == [i < 5 for i in range(hits)]
    assert labels.event_scores is None


def test_any_output_of_any_planes_goes_back_to_the_hits():
    event = make_event(0, hits=10)
    plane = event.tensors["hit_table_local_plane"]
    of_hits = {
        "x_position": np.arange(30, dtype=np.float32).reshape(10, 3),
        "x_i": np.arange(10, dtype=np.int32) - 1,
        "of": np.linspace(0, 1, 10, dtype=np.float32),
    }
    outputs: dict[str, NDArray[Any]] = {
        f"{name}_{p}": values[plane == i]
        for name, values in of_hits.items()
        for i, p in enumerate(("x", "ind", "z"))
    }
    labels = assemble(event, {**outputs, "n_evt": np.float32([[4]])}, ("x", "ind", "z"))
    assert labels.hits.keys() == of_hits.keys()
    for name, values in of_hits.items():
        assert labels.hits[name].dtype == values.dtype
        np.testing.assert_array_equal(labels.hits[name], values)
    assert labels.whole["n_evt"].tolist() == [4]
    assert (labels.classes, labels.label.sum(), labels.noise.sum()) == (0, 0, 0)


@pytest.mark.parametrize(
    ("output", "spoil", "says"),
    [
        ("x_semantic_v", lambda rows: rows[:-1], r"x_semantic_v with shape \[1, 7\] for 2 hits"),
        ("x_filter_y", lambda rows: rows[:0], r"x_filter_y with shape \[0\] for 2 hits"),
        ("x_semantic_u", lambda rows: rows * np.nan, "NaN or infinity in x_semantic_u"),
        ("x_semantic_y", lambda rows: rows[:, :5], "5 columns for plane y, 7 for plane u"),
        ("x_filter_u", None, "no x_filter_u"),
        (None, None, "nothing for the event's hits"),
    ],
)
def test_an_answer_that_does_not_fit_is_an_error(output, spoil, says):
    event = make_event(0)
    outputs = outputs_for(event.tensors) if output else {}
    given = outputs.pop(output, None)
    if spoil is not None:
        outputs[output] = spoil(given)
    with pytest.raises(RequestError, match=says):
        assemble(event, {**outputs, "scores": np.zeros((6, 2))}, UVY)


def test_logits_become_probabilities_and_probabilities_stay():
    given = np.array([[0.25, 0.75]], dtype=np.float32)
    assert probabilities(given) is given
    logits = np.array([[2000.0, 2000.0], [-5.0, 5.0]], dtype=np.float32)
    found = probabilities(logits)
    assert np.allclose(found.sum(axis=1), 1)
    assert np.allclose(found[0], 0.5)
