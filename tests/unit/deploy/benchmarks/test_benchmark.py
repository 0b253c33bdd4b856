"""The benchmark's plan, its clients, its arithmetic, and what it shows."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.client.transport import ServedModel
from deploy.host.errors import KitError
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.config import LaunchSettings
from deploy.triton.stage import plan_models
from scripts.benchmarks.cells import (
    PROTOCOLS,
    SERVERS,
    Cell,
    EventSet,
    PathTimes,
    Results,
    Tensors,
    Turn,
    plan_cells,
)
from scripts.benchmarks.clients import drive, send_all, summarise
from scripts.benchmarks.counters import Counters, read_counters
from scripts.benchmarks.document import GRADIENTS_OFF, SERVING, document, find
from scripts.benchmarks.memory import Growth
from scripts.benchmarks.readme import _shares
from scripts.benchmarks.server import FIXED_ANSWER, REFERENCE_MODEL, fixed_answer, reference_model
from scripts.benchmarks.tables import tables

MODEL = ServedModel("m", {}, (), {})


def events(count: int, hits: int = 3) -> list[Tensors]:
    tensors = {
        "hit_table_hit_id": np.arange(hits, dtype=np.int32),
        "spacepoint_table_spacepoint_id": np.arange(2, dtype=np.int32),
    }
    return [{**tensors, "number": np.array([number])} for number in range(count)]


def test_ours_is_asked_in_every_way_and_the_references_over_grpc():
    few = EventSet("3 hits", events(2), loaded=True)
    cells = plan_cells("m", few, protocols=PROTOCOLS, concurrencies=(1, 2, 4), servers=SERVERS)
    assert [(c.server, c.protocol, c.concurrency) for c in cells] == [
        ("ours", "http", 1), ("ours", "grpc", 1), ("ours", "shm", 1),
        ("today", "grpc", 1), ("best", "grpc", 1),
        ("ours", "http", 2), ("ours", "grpc", 2), ("ours", "shm", 2), ("today", "grpc", 2),
        ("ours", "http", 4), ("ours", "grpc", 4), ("ours", "shm", 4),
        ("today", "grpc", 4), ("best", "grpc", 4),
    ]  # fmt: skip


class Recorder:
    """A connection that takes a while, and tells which events were sent by which thread."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.fail_at = fail_at
        self.sent: list[tuple[int, int]] = []
        self.closed = 0

    def infer(self, model: ServedModel, tensors: Tensors) -> dict[str, Any]:
        number = int(tensors["number"][0])
        self.sent.append((threading.get_ident(), number))
        if self.fail_at is not None and len(self.sent) > self.fail_at:
            raise KitError("refused")
        time.sleep(0.001)
        return {}

    def close(self) -> None:
        self.closed += 1


def test_each_client_begins_with_another_event_and_sends_all_in_turn():
    recorder, begun = Recorder(), []
    given = {"concurrency": 2, "seconds": 0.05, "started": lambda: begun.append(len(recorder.sent))}
    driven = drive(lambda: recorder, MODEL, events(3), **given)
    assert begun == [2]  # an answer for each, before any time is taken
    clients: dict[int, list[int]] = {}
    for thread, number in recorder.sent[2:]:
        clients.setdefault(thread, []).append(number)
    assert sorted(sent[:4] for sent in clients.values()) == [[0, 1, 2, 0], [1, 2, 0, 1]]
    assert len(driven.latencies) == len(recorder.sent) - 2
    assert driven.latencies.min() >= 0.001
    assert recorder.closed == 2


@pytest.mark.parametrize("fail_at", [0, 3])
def test_the_first_error_of_a_client_ends_all_and_is_told(fail_at):
    recorder = Recorder(fail_at=fail_at)
    with pytest.raises(KitError, match="refused"):
        drive(lambda: recorder, MODEL, events(1), concurrency=4, seconds=5)
    assert recorder.closed == 4


def test_the_rate_is_that_of_the_time_in_which_all_clients_are_at_work():
    # Two clients, an answer each second from each, the second half a second later; the last
    # request of the second ends when the first client has left.
    first = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]
    second = [(0.0, 1.5), (1.5, 2.5), (2.5, 9.0)]
    driven = summarise([first, second])
    assert driven.rate == 2  # at 2, 2.5 and 3, after each had its first answer by 1.5
    assert sorted(driven.latencies) == [1, 1, 1, 1, 1.5, 6.5]


def test_each_event_of_a_list_is_sent_once_by_clients_that_share_them():
    recorder = Recorder()
    send_all(lambda: recorder, MODEL, events(20), clients=3)
    assert sorted(number for _, number in recorder.sent) == list(range(20))
    assert recorder.closed == 3


METRICS = """\
# HELP nv_inference_request_success Number of successful inference requests
# TYPE nv_inference_request_success counter
nv_inference_request_success{{model="m",version="1"}} {requests}
nv_inference_request_success{{model="m_today",version="1"}} 1000
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{{model="m",version="1"}} {queue}
# TYPE nv_inference_compute_input_duration_us counter
nv_inference_compute_input_duration_us{{model="m",version="1"}} 1000000
# TYPE nv_inference_compute_infer_duration_us counter
nv_inference_compute_infer_duration_us{{model="m",version="1"}} {infer}
# TYPE nugraph_events_total counter
nugraph_events_total{{model="m",version="1"}} {requests}
# TYPE nugraph_preprocessing_seconds_total counter
nugraph_preprocessing_seconds_total{{model="m",version="1"}} {graph}
# TYPE nugraph_network_seconds_total counter
nugraph_network_seconds_total{{model="m",version="1"}} 2.5
"""


def test_times_are_means_of_what_was_added_between_two_looks():
    before = read_counters(METRICS.format(requests=10, queue=0, infer=5e6, graph=1), "m")
    after = read_counters(METRICS.format(requests=14, queue=8e6, infer=6e6, graph=3), "m")
    assert after.since(before) == Counters(
        requests=4, queue=2, execute=0.25, events=4, preprocess=0.5, network=0
    )


@pytest.fixture
def ours():
    settings = LaunchSettings(environment=Path("/env"), parameters={}, instances=2)
    (planned,) = plan_models(MODEL_REPOSITORY, ["nugraph3"], settings, {})
    return planned


@pytest.mark.parametrize(
    ("server", "instances", "threads", "gradients"),
    [("today", 1, "0", "on"), ("best", 2, "1", "off")],
)
def test_a_reference_is_served_with_our_weights_by_nugraphs_own_code(
    ours, server, instances, threads, gradients
):
    reference = reference_model(ours, server, 2, Path("/full"), Path("/beside"))
    assert reference.name == reference.config.name == f"nugraph3_{server}"
    assert reference.copies == {**ours.copies, "1/model.py": REFERENCE_MODEL}
    assert [group.count for group in reference.config.instance_group] == [instances]
    given = {name: value.string_value for name, value in reference.config.parameters.items()}
    assert given["EXECUTION_ENV_PATH"] == "/full"
    assert given["nugraph25"] == "/beside"
    assert (given["threads"], given["gradients"]) == (threads, gradients)
    assert reference.config.output == ours.config.output
    assert [group.count for group in ours.config.instance_group] == [2]


def test_a_fixed_answer_takes_the_place_of_the_network_with_its_tensors_and_instances(ours):
    fixed = fixed_answer(ours)
    assert fixed.name == fixed.config.name == "nugraph3_fixed"
    assert fixed.copies == {**ours.copies, "1/model.py": FIXED_ANSWER}
    fixed.config.name = ours.config.name
    assert fixed.config == ours.config


@pytest.fixture
def results():
    made = Results(machine={"cores": 2}, models={"m": "nugraph3 24.7.1"})
    made.sets = {"3 hits": (3.0, 2.0, 2)}
    shape = (4, 2)  # rounds, events
    for path, seconds in ((GRADIENTS_OFF, 0.03), (SERVING, 0.01)):
        stages = [np.full(shape, part * seconds) for part in (0.2, 0.8, 1.0, 0.9)]
        made.in_process["m", "3 hits", path] = PathTimes(np.stack(stages, axis=-1))
    ours, today = (Cell("m", "3 hits", server, "grpc", 1) for server in ("ours", "today"))
    for cell, latency, rates in ((ours, 0.005, (90, 110, 100)), (today, 0.05, (9, 10, 10))):
        latencies = np.full(10, latency)
        made.served[cell] = [Turn(latencies, rate, 0.001, 0.002, 0.0005, 0.004) for rate in rates]
    return made


def test_ratios_are_taken_turn_by_turn_and_throughput_is_set_against_one_core(results):
    run = json.loads(json.dumps(document(results)))
    ours = find(run["served"], server="ours")
    assert ours["times_one_core"]["median"] == pytest.approx(1.0), "against one core"
    assert ours["overhead"]["median"] == pytest.approx(0.002), "what is not the model's"
    assert "times_one_core" not in find(run["served"], server="today")
    served = find(run["served_ratios"], against="today")
    assert served["events_per_second"]["median"] == 10  # of 10, 11, 10; not 100 / 10
    assert served["events_per_second"]["high"] > 10
    assert served["latency"]["median"] == pytest.approx(10)
    (alone,) = run["in_process_ratios"]
    assert (alone["of"], alone["against"]) == (SERVING, GRADIENTS_OFF)
    assert alone["event"]["median"] == pytest.approx(3)


def test_of_few_requests_there_is_no_99th_percentile(results):
    run = document(results)
    shown = {row[0]: row[4] for table in tables(run) for row in table.rows if len(row) > 10}
    assert set(shown.values()) == {"-"}  # 30 each
    for entry in run["served"]:
        entry["requests"] = 100
    shown = {row[0]: row[4] for table in tables(run) for row in table.rows if len(row) > 10}
    assert shown["numl_serving"] == "5.00"


def test_what_a_round_trip_takes_besides_the_model_is_told_of_its_mean():
    latency = {"mean": 0.010, "p50": 0.009, "p99": 0.012}
    entry = {
        "model": "m", "events": "1300 hits", "server": "ours", "protocol": "grpc",
        "concurrency": 1, "latency": latency, "preprocess": 0.001, "network": 0.007,
        "overhead": {"median": 0.001},
    }  # fmt: skip
    assert " ".join(_shares({"served": [entry]})).split(" (")[0].endswith("10.0 ms on average")
    assert "client 20%: 2.00 ms." in " ".join(_shares({"served": [entry]}))


def test_memory_that_grows_with_each_event_has_a_slope_and_memory_that_settles_has_none():
    looks = tuple(range(0, 5001, 500))
    settled = tuple(300_000_000 if events < 1000 else 400_000_000 for events in looks)
    leaking = tuple(300_000_000 + 20_000 * events for events in looks)
    assert Growth("m", looks, settled, 0, 1).slope(since=1000) == pytest.approx(0)
    assert Growth("m", looks, settled, 0, 1).after(1000) == 400
    assert Growth("m", looks, leaking, 0, 1).slope(since=1000) == pytest.approx(20)
