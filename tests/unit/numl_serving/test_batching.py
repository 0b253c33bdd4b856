"""Batches: what a worker holds, how large they are, and what their failures leave behind."""

import threading
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from numl_serving import batches
from numl_serving.batches import Limits
from numl_serving.batching import BatchWorker
from numl_serving.errors import DeviceLostError, EventError, NetworkError, attempt


def never(items: list[Any], error: BaseException) -> None:
    raise AssertionError(f"{items} were abandoned: {error}")


def test_a_worker_handles_items_in_order_and_drains_at_the_end():
    handled: list[list[int]] = []
    worker = BatchWorker(handled.append, never, max_items=3, max_wait_s=60)
    for item in range(8):
        assert worker.submit(item) == "taken"
    worker.close()
    assert [item for batch in handled for item in batch] == list(range(8))
    assert all(1 <= len(batch) <= 3 for batch in handled)
    assert worker.submit(9) == "closed"
    worker.close()  # a second time does nothing


def test_a_worker_waits_no_longer_than_asked_for_a_full_batch():
    handled = threading.Event()
    worker = BatchWorker(lambda batch: handled.set(), never, max_items=100, max_wait_s=0.05)
    start = time.monotonic()
    worker.submit(1)
    assert handled.wait(10)
    assert time.monotonic() - start >= 0.05
    worker.close()


def test_a_worker_hands_a_full_batch_over_at_once():
    handled = threading.Event()
    worker = BatchWorker(lambda batch: handled.set(), never, max_items=2, max_wait_s=60)
    worker.submit(1)
    assert not handled.wait(0.05)
    worker.submit(2)
    assert handled.wait(10)
    worker.close()


def test_a_worker_with_a_limit_refuses_what_exceeds_it_at_once():
    gate, running = threading.Event(), threading.Event()

    def handle(batch: list[int]) -> None:
        running.set()
        assert gate.wait(10)

    worker = BatchWorker(handle, never, max_items=1, max_wait_s=0, most_waiting=2)
    worker.submit(0)
    assert running.wait(10)
    assert [worker.submit(item) for item in (1, 2, 3)] == ["taken", "taken", "full"]
    gate.set()
    worker.close()


def test_a_worker_that_fails_abandons_all_that_it_holds_and_takes_no_more():
    gate, running = threading.Event(), threading.Event()
    abandoned: list[tuple[list[int], BaseException]] = []

    def handle(batch: list[int]) -> None:
        running.set()
        assert gate.wait(10)
        raise SystemExit("even this")  # no Exception, and in a thread nobody would hear of it

    worker = BatchWorker(
        handle, lambda items, error: abandoned.append((items, error)), max_items=2, max_wait_s=0
    )
    worker.submit(1)
    assert running.wait(10)
    client = threading.Thread(target=lambda: [worker.submit(2), worker.submit(3)])
    client.start()
    client.join(0.2)
    gate.set()
    client.join(10)
    worker.close()
    ((items, error),) = abandoned
    assert items == [1, 2, 3]
    assert str(error) == "even this"
    assert worker.submit(4) == "closed"


class Tensors:
    """Stands in for the memory of a batch."""


def test_what_a_failure_returns_holds_nothing_of_the_call():
    alive: list[weakref.ref[Tensors]] = []

    def network(kind: type[Exception]) -> None:
        tensors = Tensors()
        alive.append(weakref.ref(tensors))
        try:
            raise MemoryError("out of memory\nmore")
        except MemoryError as error:
            raise kind("too large\nmore") from error

    unforeseen = attempt(network, RuntimeError)
    foreseen = attempt(network, EventError)
    assert [reference() for reference in alive] == [None, None]
    assert isinstance(unforeseen, NetworkError)
    assert str(unforeseen) == "RuntimeError: too large"
    assert "in network" in unforeseen.details
    assert isinstance(foreseen, EventError)
    assert attempt(divmod, 7, 2) == (3, 1)


def graph(hits: int, edges: int, up: int = 0) -> Any:
    return SimpleNamespace(rows=range(hits), edge_source=range(edges), up_hit=range(up))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(10, 1), (10, 1), (80, 1)], [[0, 1, 2]]),
        ([(10, 1), (10, 1), (81, 1)], [[0, 1], [2]]),
        ([(1, 500), (1, 500), (1, 1)], [[0, 1], [2]]),
        ([(1, 400, 200), (1, 400, 1)], [[0], [1]]),  # edges to spacepoints count, too
        ([(1, 1), (5000, 90000), (1, 1)], [[0], [1], [2]]),
        ([(0, 0)], [[0]]),
        ([], []),
    ],
)
def test_batches_keep_to_both_limits_and_a_larger_event_is_alone(sizes, expected):
    graphs = {number: graph(*size) for number, size in enumerate(sizes)}
    assert list(batches.split(graphs, Limits(hits=100, edges=1000))) == expected


class Device:
    """Runs batches of graphs, whose answer is their hits; some sizes do not fit."""

    def __init__(self, capacity: int, poison: int = -1) -> None:
        self.capacity, self.poison = capacity, poison
        self.tried: list[int] = []
        self.alive: list[weakref.ref[Tensors]] = []
        self.recovered = 0

    def answer(self, graphs: Any) -> list[Any]:
        tensors = Tensors()
        self.alive.append(weakref.ref(tensors))
        self.tried.append(len(graphs))
        if len(graphs) > self.capacity:
            raise RuntimeError("out of memory")
        if any(len(each.rows) == self.poison for each in graphs):
            raise ValueError("poisoned")
        return [{"hits": len(each.rows)} for each in graphs]

    def recover(self) -> None:
        assert not any(reference() for reference in self.alive)
        self.recovered += 1


def test_a_batch_that_does_not_fit_is_run_in_halves_with_nothing_of_it_alive():
    device = Device(capacity=4)
    graphs = {number: graph(number, 1) for number in range(16)}
    results, runs = batches.run(graphs, Limits(), device.answer, device.recover)
    assert results == {number: {"hits": number} for number in range(16)}
    assert device.tried == [16, 8, 4, 4, 8, 4, 4]
    assert device.recovered == 3
    assert runs == 4


def test_one_event_that_fails_fails_alone():
    device = Device(capacity=99, poison=5)
    graphs = {number: graph(number, 1) for number in range(9)}
    results, _ = batches.run(graphs, Limits(), device.answer, device.recover)
    failed = results.pop(5)
    assert isinstance(failed, NetworkError)
    assert str(failed) == "ValueError: poisoned"
    assert results == {number: {"hits": number} for number in range(9) if number != 5}


def test_once_the_device_is_lost_nothing_more_is_tried_on_it():
    device = Device(capacity=2)
    lost = DeviceLostError("cuda:0 cannot be used any more")
    graphs = {number: graph(1, 600 if number == 1 else 400) for number in range(6)}
    device.capacity = 1
    results, runs = batches.run(graphs, Limits(edges=1000), device.answer, lambda: lost)
    assert runs == 0
    assert device.tried == [2]
    assert results == dict.fromkeys(range(6), lost)
