"""What a load test sends, and how it counts what comes back: without a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from deploy.client.endpoint import Endpoint
from deploy.client.load.connection import Request, as_request, is_same
from deploy.client.load.open_loop import Counts, Round, deliver, offer
from deploy.client.load.summary import all_figures, document, row
from deploy.client.load.traffic import Patience, Tenant, arrivals, simulated_event
from deploy.client.transport import ServedModel
from deploy.commands import load
from deploy.host.console import Console
from deploy.host.errors import ClientError
from numl_formats.contract import INPUTS

MODEL = ServedModel("nugraph3", INPUTS, ("x_filter_u",), {})


def answer(values: Sequence[float]) -> bytes:
    array = np.array(values, np.float32)
    response = service_pb2.ModelInferResponse(model_name="nugraph3")
    response.outputs.add(name="x_filter_u", datatype="FP32", shape=array.shape)
    response.raw_output_contents.append(array.tobytes())
    return bytes(response.SerializeToString())


RIGHT, WRONG = answer([0.5, 0.25]), answer([0.5, 0.75])


class Played:
    """Connections to a server that is not there: each request gets the next of these answers."""

    def __init__(
        self, *answers: tuple[bytes | None, str, str], takes: float = 0.0, instances: int = 10**9
    ) -> None:
        self.answers, self.takes = list(answers), takes
        self.instances = asyncio.Semaphore(instances)
        self.asked = self.open = self.most = 0

    async def infer(self, content: bytes, deadline_s: float) -> tuple[bytes | None, str, str]:
        self.asked += 1
        chosen = self.answers[min(self.asked, len(self.answers)) - 1]
        async with self.instances:
            self.open += 1
            self.most = max(self.most, self.open)
            await asyncio.sleep(self.takes)
            self.open -= 1
        return chosen

    async def references(self, requests: list[Request], _: float) -> list[Request]:
        return requests

    async def __aenter__(self) -> Played:
        return self

    async def __aexit__(self, *_: object) -> None: ...


FULL = (None, "UNAVAILABLE", "Exceeds maximum queue size")
SLOW = (None, "DEADLINE_EXCEEDED", "Deadline Exceeded")
INVALID = (None, "INVALID_ARGUMENT", "hit_table has 9 rows")


@pytest.mark.parametrize(
    ("answers", "takes", "sent", "good", "late", "wrong", "refused"),
    [
        ([(RIGHT, "OK", "")], 0.0, 1, 1, 0, 0, {}),
        ([FULL, (RIGHT, "OK", "")], 0.0, 2, 1, 0, 0, {}),
        ([FULL], 0.0, 3, 0, 0, 0, {"UNAVAILABLE": 1}),
        ([INVALID], 0.0, 1, 0, 0, 0, {"INVALID_ARGUMENT": 1}),
        ([FULL, SLOW], 0.0, 3, 0, 1, 0, {}),
        ([(WRONG, "OK", "")], 0.0, 1, 0, 0, 1, {}),
        ([(RIGHT, "OK", "")], 0.2, 1, 0, 1, 0, {}),
    ],
    ids=["right", "right at the second try", "refused", "not again", "never", "wrong", "late"],
)
def test_an_event_counts_as_what_became_of_it(answers, takes, sent, good, late, wrong, refused):
    server, counts = Played(*answers, takes=takes), Counts()
    patience = Patience(deadline_s=0.1, retries=2)
    request = Request(b"event", 9, RIGHT)
    now = time.perf_counter()
    asyncio.run(deliver(server, request, patience, counts, now, now + 60))
    found = (counts.sent, len(counts.latencies), counts.late, counts.wrong, dict(counts.refused))
    assert found == (sent, good, late, wrong, refused)


def test_events_arrive_whether_or_not_earlier_ones_were_answered():
    tenants = [Tenant("steady", 200.0), Tenant("heavy", 50.0, 9)]
    traffic = [(tenant, [Request(b"event", 9, RIGHT)]) for tenant in tenants]
    server = Played((RIGHT, "OK", ""), takes=0.3)
    found = asyncio.run(offer(server, traffic, Patience(), seconds=0.2, seed=1))
    # All were sent before the first answer came, and each counts for its own tenant.
    assert server.most > 1
    assert server.most == server.asked == sum(c.arrived for c in found.tenants.values())
    steady, heavy = (found.tenants[tenant.name].arrived for tenant in tenants)
    assert steady > heavy > 0


def test_arrivals_are_those_of_a_poisson_process():
    random = np.random.default_rng(0)
    times = arrivals(1000.0, 20.0, random)
    assert abs(len(times) - 20_000) < 5 * 20_000**0.5
    gaps = np.diff(times)
    assert gaps.min() >= 0
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


@pytest.mark.parametrize("hits", [0, 1, 2, 1300])
def test_a_simulated_event_has_what_the_wire_demands(hits):
    event = simulated_event(INPUTS, hits, np.random.default_rng(0))
    assert list(event) == list(INPUTS)
    assert {len(v) for n, v in event.items() if n.startswith("hit_table")} == {hits}
    assert len({len(v) for n, v in event.items() if n.startswith("spacepoint")}) == 1
    sent = service_pb2.ModelInferRequest.FromString(as_request(MODEL, event))
    assert [(i.name, i.datatype) for i in sent.inputs] == list(INPUTS.items())


def test_a_model_that_needs_more_is_refused():
    needy = ServedModel("own", {**INPUTS, "picture": "UINT8"}, (), {})
    with pytest.raises(ClientError, match="model own needs picture"):
        as_request(needy, simulated_event(INPUTS, 3, np.random.default_rng(0)))


@pytest.mark.parametrize(
    ("content", "same"),
    [(RIGHT, True), (answer([0.5, 0.250001]), True), (WRONG, False), (answer([0.5]), False)],
)
def test_an_answer_is_right_if_it_is_the_reference_but_for_rounding(content, same):
    assert is_same(content, RIGHT) is same


def test_figures_are_told_as_a_row_and_as_json():
    counts = Counts(arrived=4, sent=6, late=1, meanwhile=1, latencies=[0.010, 0.030])
    counts.refused["UNAVAILABLE"] = 1
    counts.reasons["Exceeds maximum queue size"] = 3
    rounds = [Round(2.0, {"clients": counts}, 0.001)]
    (found,) = all_figures(rounds)[0]
    assert row(found) == ("2.0", "clients", "0.5", "50%", "20", "-", "1", "1")
    told = document(rounds, capacity=5.0)
    assert told == {
        "ok": True,
        "capacity": 5.0,
        "rounds": [
            {
                "behind_ms": 1.0,
                "tenants": [
                    {
                        "tenant": "clients",
                        "offered": 2.0,
                        "goodput": 0.5,
                        "arrived": 4,
                        "in_time": 2,
                        "p50_ms": 20.0,
                        "p99_ms": None,
                        "refused": 1,
                        "late": 1,
                        "wrong": 0,
                        "sent": 6,
                        "statuses": {"UNAVAILABLE": 1},
                        "reason": "Exceeds maximum queue size",
                    }
                ],
            }
        ],
    }
    counts.wrong = 1
    assert document(rounds)["ok"] is False
    counts.latencies *= 50  # of a hundred there is a 99th percentile
    assert row(all_figures(rounds)[0][0])[5] == "30"


def test_a_server_that_takes_seconds_for_an_event_is_not_said_to_answer_none(capsys):
    rounds = [Round(5.0, {"clients": Counts(arrived=2)}, 0.001)]
    facts = {"model": "own", "endpoint": "grpc://127.0.0.1:9", "capacity": 0.4}
    load._show(document(rounds, **facts), rounds, Console())
    said = capsys.readouterr().out
    assert "it can answer 0.4 events/s" in said
    assert said.splitlines()[-1].split()[0] == "0.4"


def test_of_clients_that_have_sent_nothing_no_part_was_answered_in_time():
    (found,) = all_figures([Round(2.0, {"rare": Counts()}, 0.0)])[0]
    assert row(found) == ("0.0", "rare", "0.0", "-", "-", "-", "0", "0")


def offered(monkeypatch, server: Played) -> None:
    """Measure a server's capacity, and offer it half of that for a moment."""
    known = [Request(b"event", 9, RIGHT)]
    monkeypatch.setattr(load, "Connections", lambda *_, **__: server)
    monkeypatch.setattr(load, "_PROBING_S", 0.3)
    options = load.parser().parse_args(["--rates", "0.5x", "--seconds", "0.1"])
    endpoint, traffic = Endpoint.parse("grpc://127.0.0.1:9"), {Tenant("clients", 0.0): known}
    asyncio.run(load._offered(endpoint, traffic, Patience(), options, Console("json")))


def test_a_server_that_answers_no_more_is_an_error_and_not_a_capacity_of_nothing(monkeypatch):
    with pytest.raises(ClientError, match="no longer answers"):
        offered(monkeypatch, Played(FULL))


def test_a_servers_capacity_is_that_of_all_its_instances(monkeypatch):
    server = Played((RIGHT, "OK", ""), takes=0.05, instances=40)
    offered(monkeypatch, server)
    assert server.most == 40


def test_clients_who_never_try_again_are_none():
    given = load.parser().parse_args(["--retries=0", "--pause=0", "--tenant", "light:5"])
    assert (given.retries, given.pause) == (0, 0)
    assert given.tenant == [Tenant("light", 5.0, 1300)]


def test_a_server_that_cannot_be_reached_is_told_with_what_to_do(capsys):
    assert load.main(["--url", "127.0.0.1:1", "--rates", "5"]) == 1
    assert capsys.readouterr().err == (
        "error: no server answers at grpc://127.0.0.1:1: connection refused\n"
        "  try: numlkit up, or name a server with --url\n"
    )
