"""More than a server can answer: what it does about it, and what ``numlkit load`` says of it."""

import asyncio
import json
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from deploy.client.endpoint import Endpoint
from deploy.client.load.connection import Connections, Request, as_request
from deploy.client.load.open_loop import capacity
from deploy.client.load.traffic import simulated_event
from deploy.client.transport import TritonTransport
from deploy.deployment.limits import FEWEST_BOUNDED
from tests.kit import SOON_S

WAITING, HITS, AT_ONCE = 40, 5000, 200
QUEUE = WAITING * FEWEST_BOUNDED
FILE = f"""
models = ["nugraph3"]
instances = 1

[limits]
waiting = {WAITING}
wait_s = 60
hits = {HITS}
"""
EAGER = 30
FULL, LATE = "Exceeds maximum queue size", "Request timeout expired"


@pytest.fixture(scope="module")
def url(kit, tmp_path_factory):
    file = tmp_path_factory.mktemp("bounded") / "bounded.toml"
    file.write_text(FILE)
    server = kit.up("bounded", str(file))
    yield f"grpc://127.0.0.1:{server['ports']['grpc']}"
    kit.end("bounded")


def events(url: str, *hits: int) -> list[bytes]:
    transport = TritonTransport(Endpoint.parse(url), timeout=SOON_S)
    model = transport.describe("nugraph3")
    transport.close()
    random = np.random.default_rng(0)
    return [as_request(model, simulated_event(model.inputs, each, random)) for each in hits]


def send(
    url: str, requests: list[bytes], *, deadline: float = SOON_S
) -> list[tuple[bytes | None, str, str]]:
    """Send requests at once; return answer, status and message of each."""

    async def all_at_once() -> list[tuple[bytes | None, str, str]]:
        async with Connections(Endpoint.parse(url), count=4) as connections:
            return await asyncio.gather(*(connections.infer(r, deadline) for r in requests))

    return asyncio.run(all_at_once())


def test_what_exceeds_the_queue_is_refused_at_once_and_the_rest_is_answered(url):
    found = send(url, events(url, 1300) * AT_ONCE)
    told = Counter((status, text) for _, status, text in found)
    assert set(told) == {("OK", ""), ("UNAVAILABLE", f"[request id: <id_unknown>] {FULL}")}
    assert told["OK", ""] >= QUEUE
    assert send(url, events(url, 10))[0][1] == "OK"


def test_a_burst_is_answered_about_as_fast_as_the_requests_of_clients_that_wait(url):
    (small,) = events(url, 200)

    async def rates() -> tuple[float, float]:
        async with Connections(Endpoint.parse(url), count=4) as connections:
            steady = await capacity(connections, [Request(small, 200)], clients=8, seconds=2)
            begun = time.perf_counter()
            for _ in range(3):
                burst = (connections.infer(small, SOON_S) for _ in range(100))
                assert {status for _, status, _ in await asyncio.gather(*burst)} == {"OK"}
            return steady, 300 / (time.perf_counter() - begun)

    steady, burst = asyncio.run(rates())
    assert burst >= steady / 2


@pytest.mark.parametrize("how", ["by its deadline", "by its client"])
def test_a_request_that_is_cancelled_while_it_waits_is_never_computed(url, how):
    (request, small), soon = events(url, HITS, 10), 0.1

    async def cancelled() -> int:
        async with Connections(Endpoint.parse(url), count=1) as connections:

            async def ask() -> bool:
                if how == "by its deadline":
                    return (await connections.infer(request, soon))[0] is not None
                with suppress(TimeoutError, asyncio.TimeoutError):
                    call = connections.infer(request, SOON_S)
                    return (await asyncio.wait_for(call, soon))[0] is not None
                return False

            answered = await asyncio.gather(*(ask() for _ in range(EAGER)))
            assert (await connections.infer(small, SOON_S))[1] == "OK"
            return sum(answered)

    before = computed(url)
    answered = asyncio.run(cancelled())
    # The small one; of each instance what ran when the time was over, and what it had just taken.
    most = answered + 1 + 2 * FEWEST_BOUNDED
    assert computed(url) - before <= most <= EAGER


def computed(url: str) -> float:
    """Return how many requests the model has been given."""
    from tritonclient.grpc import InferenceServerClient

    with InferenceServerClient(Endpoint.parse(url).address) as client:
        (model,) = client.get_inference_statistics("nugraph3").model_stats
    return float(model.inference_stats.compute_infer.count)


def test_an_event_above_the_limit_is_refused_and_names_it(url):
    ((answer, status, text),) = send(url, events(url, HITS + 1))
    assert answer is None
    assert status == "INVALID_ARGUMENT"
    assert text == (
        f"hit_table has {HITS + 1} rows: this server accepts at most {HITS} "
        "(limits.hits in its deployment file)"
    )


def test_load_tells_what_clients_got(kit, url, tmp_path):
    picture = tmp_path / "load.png"
    flags = ["--name", "bounded", "--hits", "200", "--rates", "20,4x", "--seconds", "1"]
    done = kit.run("load", *flags, "--tenant", "light:5:50", "--plot", str(picture), "--json")
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert told["capacity"] > 0
    slow, fast = (each["tenants"] for each in told["rounds"])
    assert [tenant["tenant"] for tenant in slow] == ["clients", "light"]
    assert fast[0]["arrived"] > slow[0]["arrived"] > 0
    for tenant in (*slow, *fast):
        ended = tenant["refused"] + tenant["late"] + tenant["in_time"]
        assert ended == tenant["arrived"]
        assert tenant["wrong"] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_events_of_a_file_are_sent(kit, url):
    flags = ["--url", url, "--rates", "5", "--seconds", "1", "--json"]
    done = kit.run("load", "scripts/data/demo_events.h5", *flags)
    assert done.returncode == 0, done.stderr
    (tenant,) = json.loads(done.stdout)["rounds"][0]["tenants"]
    assert tenant["wrong"] == 0
