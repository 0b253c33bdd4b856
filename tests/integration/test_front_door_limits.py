"""What hostile or careless clients do to a front door, and what others notice of it.

``NUMLKIT_CROWD=whole`` plays 10,000 idle connections and 1,000 of each other kind: two minutes.
"""

import asyncio
import http.client
import os
import socket
import subprocess
import urllib.request
from contextlib import ExitStack, suppress
from functools import partial

import grpc
import pytest

from tests.asking import Clients, asked, backends, trusting
from tests.backend import INFER, STREAM
from tests.chart import Site, find, render
from tests.crowd import ask_compressed, half_sent, idle, slow_readers
from tests.doors import Haproxy, door_of, envoy
from tests.kit import SOON_S, until

REQUESTS, PER_SECOND = 1000, 300.0
EVENT = bytes(100_000)
ACTIVE = "/stats?filter=http.front.downstream_rq_active"
WHOLE = os.environ.get("NUMLKIT_CROWD") == "whole"
CROWDS = {
    "idle": idle(10_000 if WHOLE else 1500),
    "without TLS": idle(10_000 if WHOLE else 1500, encrypted=False),
    "half-sent": half_sent(1000 if WHOLE else 300, 1_000_000),
    "slow": slow_readers(1000 if WHOLE else 300),
}
SMALL = {"resources": {"limits": {"memory": "1Gi" if WHOLE else "384Mi"}}}


@pytest.fixture(scope="module")
def servers():
    with backends(2, 0.005) as started:
        yield started


@pytest.fixture(scope="module", params=["haproxy", "envoy"])
def door(request, servers, tmp_path_factory):
    site = Site(("cpu",), {"frontDoor": SMALL})
    with door_of(request.param, tmp_path_factory.mktemp("door"), servers, site) as found:
        yield found


@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS)
def test_a_crowd_costs_others_no_request_and_the_door_no_memory_beyond_its_limit(door, crowd):
    clients, most = Clients(door.port, trusting(door.authority)), [0]

    async def play() -> None:
        async with crowd.at(door.port, door.authority.file) as entered:
            assert entered > 0.9 * crowd.count
            # Below the rate that a door allows to one address, also on a fast host.
            ask = partial(clients.ask, REQUESTS, EVENT, per_second=PER_SECOND)
            asking = asyncio.create_task(asyncio.to_thread(ask))
            while not asking.done():
                most.append(door.memory)
                await asyncio.sleep(0.05)
            await asking

    asyncio.run(play())
    print(f"memory at most {max(most) >> 20} MiB")
    assert (dict(clients.failed), len(clients.took)) == ({}, REQUESTS)
    assert max(most) < door.limit


@pytest.mark.parametrize(
    "encodings", [("identity", "gzip"), ("gzip", "identity"), ("identity, gzip",)], ids=str
)
def test_a_second_grpc_encoding_does_not_hide_the_first(door, servers, encodings):
    before = asked(servers)
    ask_compressed(door.port, door.authority.file, *encodings)
    assert asked(servers) == before


def test_a_second_length_of_the_json_does_not_hide_the_first(door):
    with door.https() as client:
        client.putrequest("POST", "/v2/models/nugraph3/infer")
        for length in ("99999", "4"):
            client.putheader("Inference-Header-Content-Length", length)
        client.putheader("Content-Length", "4")
        client.endheaders(b"{}  ")
        assert client.getresponse().status == http.client.FORBIDDEN


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_body_of_unknown_length_is_refused_or_measured(door, method):
    """HAProxy would send any number of bytes on; Envoy keeps them until it knows how many."""
    length = {"Inference-Header-Content-Length": "2"}
    with door.https() as client:
        client.request(
            method, "/v2/models/nugraph3/infer", iter([b"{}"]), length, encode_chunked=True
        )
        refused = isinstance(door, Haproxy)
        wanted = http.client.LENGTH_REQUIRED if refused else http.client.OK
        assert client.getresponse().status == wanted


@pytest.mark.parametrize("length", [1 << 31, (1 << 32) + 1, (1 << 64) - 1])
def test_a_body_that_is_declared_with_gigabytes_comes_to_no_server(door, servers, length):
    """HAProxy's numbers of 32 bits would be negative, or small."""
    before = asked(servers)
    with door.https() as client, suppress(OSError):  # it may be refused before it has been sent
        client.putrequest("POST", "/v2/models/nugraph3/infer")
        client.putheader("Inference-Header-Content-Length", "2")
        client.putheader("Content-Length", str(length))
        client.endheaders(bytes(17 << 20))
        assert client.getresponse().status == http.client.REQUEST_ENTITY_TOO_LARGE
    assert asked(servers) == before


def test_a_message_above_16_mb_comes_to_no_server(door, servers):
    before = asked(servers)
    unbounded = [("grpc.max_send_message_length", -1)]
    with door.channel(options=unbounded) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary(INFER)(bytes((16 << 20) + 1), timeout=SOON_S)
    assert asked(servers) == before


def test_nor_does_one_after_a_small_one_in_a_stream(door, servers):
    before = asked(servers)
    unbounded = [("grpc.max_send_message_length", -1)]
    with door.channel(options=unbounded) as channel, pytest.raises(grpc.RpcError):
        list(channel.stream_stream(STREAM)(iter([EVENT, bytes(17 << 20)]), timeout=SOON_S))
    assert asked(servers) == before


def test_what_a_busy_server_refuses_is_not_sent_again_without_bound(tmp_path):
    requests, own = 2000, [("grpc.use_local_subchannel_pool", 1)]
    with backends(2, 0.02) as servers, envoy(tmp_path, servers) as door:
        with ExitStack() as stack:
            channels = [stack.enter_context(door.channel(options=own)) for _ in range(4)]
            calls = [channel.unary_unary(INFER) for channel in channels]
            sent = [calls[n % 4].future(b"busy", timeout=60) for n in range(requests)]
            assert {each.code() for each in sent} <= {
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.RESOURCE_EXHAUSTED,  # above the quota of an address
            }
        assert asked(servers) < 1.5 * requests
        metrics = door.ask("/stats/prometheus")
        for name in ("fixed_heap", "global_downstream_max_connections"):  # as an alert has them
            assert f"\nenvoy_overload_envoy_resource_monitors_{name}_pressure" in metrics


def test_nor_is_it_over_http_where_a_request_is_tried_three_times(tmp_path):
    """It goes through two listeners, of which one tries again."""
    with backends(2, 0) as servers, envoy(tmp_path, servers) as door:
        with door.https() as client:
            length = {"Inference-Header-Content-Length": "4"}
            client.request("POST", "/v2/models/nugraph3/infer", b"busy", length)
            assert client.getresponse().status == http.client.SERVICE_UNAVAILABLE
        assert asked(servers) == 3


def test_what_busy_servers_would_refuse_is_refused_at_the_door_until_they_are_not(tmp_path):
    requests = 900
    with backends(2, 0.002) as servers, envoy(tmp_path, servers) as door:
        with door.channel() as channel:
            sent = [channel.unary_unary(INFER).future(b"busy") for _ in range(requests)]
            words = {(each.code(), each.details()) for each in sent}
        busy = grpc.StatusCode.UNAVAILABLE
        assert (busy, "Exceeds maximum queue size: try again in 1 s") in words
        assert {code for code, _ in words} == {busy}
        assert asked(servers) < requests / 2

        def failed() -> int:
            clients = Clients(door.port, trusting(door.authority))
            clients.ask(40, EVENT, per_second=PER_SECOND)
            return clients.failed.total()

        until(lambda: failed() == 0, "servers that are busy no more")


def test_clients_do_not_say_how_a_front_door_retries_or_waits(tmp_path):
    with backends(1, 0.05) as servers, envoy(tmp_path, servers) as door:
        impatient = (("x-envoy-upstream-rq-timeout-ms", "1"), ("x-envoy-max-retries", "100"))
        clients = Clients(door.port, trusting(door.authority), impatient)
        clients.ask(4, EVENT)
        assert not clients.failed


def test_a_full_door_is_still_ready_and_says_that_it_is_full(tmp_path):
    most = 8
    site = Site(("cpu",), {"frontDoor": {"connections": most}})
    full = "envoy_overload_envoy_resource_monitors_global_downstream_max_connections_pressure{} 100"
    with (
        backends(1, 0.005) as servers,
        envoy(tmp_path, servers, site) as door,
        ExitStack() as held,
    ):
        for _ in range(most + 2):
            held.enter_context(socket.create_connection(("127.0.0.1", door.port)))

        def said(path: str) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{door.status}{path}", timeout=5) as got:
                return got.read().decode()

        until(lambda: full in said("/stats/prometheus"), "what the alert looks at")
        assert said("/ready") == "LIVE\n"


def test_a_door_that_ends_first_lets_long_requests_be_answered(tmp_path):
    site = Site(("cpu",), {"drainSeconds": 1})
    pod = find(render(site), "Deployment", "numl-front")["spec"]["template"]["spec"]
    hook = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    with (
        backends(1, 4) as servers,
        envoy(tmp_path, servers, site) as door,
        door.channel() as channel,
    ):
        waiting = channel.unary_unary(INFER).future(EVENT, timeout=SOON_S)
        until(lambda: ".downstream_rq_active: 1" in door.ask(ACTIVE), "the request")
        subprocess.run([word.replace("9901", str(door.admin)) for word in hook], check=True)
        assert ".downstream_rq_active: 0" in door.ask(ACTIVE)
        door.process.terminate()
        assert waiting.result() == b"right"
