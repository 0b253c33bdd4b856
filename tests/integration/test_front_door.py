"""Both front doors, HAProxy and Envoy, before three real servers: no request is lost."""

import gzip
import http.client
import os
import shutil
import signal
from contextlib import closing, suppress

import grpc
import psutil
import pytest

from tests.backend import INFER
from tests.chart import Site
from tests.doors import Door, Haproxy, Server, door_of
from tests.kit import SOON_S, Kit, until
from tests.load import Load

NAMES = ("one", "two", "three")
MODELS = ("--models", "nugraph2_cpu,nugraph3", "--instances", "1")
SITE = Site(("cpu",), {"models": ["nugraph2_cpu", "nugraph3"]})
REQUESTS = 200


def server(kit: Kit, name: str) -> Server:
    http, grpc, _ = map(int, kit.ports[name].split(","))
    return Server(http, grpc)


@pytest.fixture(scope="module")
def servers(kit):
    for name in NAMES:
        kit.up(name, *MODELS)
    yield [server(kit, name) for name in NAMES]
    for name in NAMES:
        kit.end(name)


@pytest.fixture(scope="module", params=["haproxy", "envoy"])
def door(request, servers, tmp_path_factory):
    with door_of(request.param, tmp_path_factory.mktemp("door"), servers, SITE) as found:
        yield found


def load(door: Door, scheme: str = "grpcs", least: int = REQUESTS) -> Load:
    return Load(f"{scheme}://127.0.0.1:{door.port}", door.authority.file, least)


def failed(door: Door, clients: Load) -> list[str]:
    """Return what failed for good.

    HAProxy may reset requests, for their clients to send again, when it marks their server down.
    """
    reset = [each for each in clients.wrong if "RST_STREAM with error code 7" in each]
    assert len(reset) <= (1 if isinstance(door, Haproxy) else 0) * clients.clients
    return [each for each in clients.wrong if each not in reset]


def test_a_server_that_is_killed_costs_no_request_and_is_asked_again(kit, door):
    one = server(kit, "one")
    with load(door) as clients:
        until(lambda: clients.asked > 100, "load")
        os.kill(kit.noted("one")["server"]["pid"], signal.SIGKILL)
        until(lambda: not door.up(one), "the door's notice")
        until(lambda: door.up(one), "the server that the supervisor starts again")
    assert failed(door, clients) == []


def test_a_server_that_stops_answering_costs_no_request_and_is_asked_again(kit, door):
    one = server(kit, "one")
    with load(door) as clients:
        until(lambda: clients.asked > 100, "load")
        stopped = psutil.Process(kit.noted("one")["server"]["pid"])
        stopped.suspend()
        try:
            until(lambda: not door.up(one), "the door's notice")
        finally:
            stopped.resume()
        until(lambda: door.up(one), "the server that goes on")
    assert failed(door, clients) == []


def test_a_model_that_one_server_loses_costs_no_request(kit, door):
    """Envoy asks again where HAProxy cannot look; of HAProxy few requests may be lost."""
    folder = kit.folder("one") / "model_repository/nugraph3"
    aside = kit.folder("one") / "nugraph3.aside"
    # Of HAProxy a share is asserted.
    with load(door, least=1000 if isinstance(door, Haproxy) else REQUESTS) as clients:
        until(lambda: clients.asked > 100, "load")
        shutil.move(folder, aside)
        try:
            until(lambda: not ready(server(kit, "one"), "nugraph3"), "the model's end")
        finally:
            shutil.move(aside, folder)
        until(lambda: ready(server(kit, "one"), "nugraph3"), "the model")
    if isinstance(door, Haproxy):
        assert len(clients.wrong) < 0.02 * clients.asked, clients.wrong
    else:
        assert clients.wrong == []


def ready(server: Server, model: str) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", server.http, timeout=10)) as client:
        try:
            client.request("GET", f"/v2/models/{model}/ready")
            return client.getresponse().status == http.client.OK
        except OSError:  # it is looked at again
            return False


def test_servers_that_are_drained_and_replaced_one_by_one_cost_no_request(kit, door):
    if not isinstance(door, Haproxy):
        pytest.skip("a pod leaves Envoy by DNS: tests/containers/chart")
    with load(door) as clients:
        for name in NAMES:
            each = server(kit, name)
            door.tell(f"set server grpc/{name} state drain")
            assert door.row(each, "http")["status"].startswith("DRAIN")
            until(lambda each=each: door.row(each)["scur"] == "0", "the end of its requests")
            kit.down(name)
            kit.up(name, *MODELS)
            door.tell(f"set server grpc/{name} state ready")
            until(lambda each=each: door.up(each), "the server's first check")
    assert clients.wrong == []


def test_http_goes_through_the_same_door(door):
    with load(door, "https") as clients:
        pass
    assert clients.wrong == []


def test_metadata_that_would_cost_other_clients_their_requests_is_refused(door):
    with load(door) as clients:
        until(lambda: clients.asked > 100, "load")
        for _ in range(100):
            with door.https() as client:
                client.request("GET", "/v2/health/ready", headers={"x": "x" * 20_000})
                assert client.getresponse().status in (400, 431)
    assert clients.wrong == []


NESTED = b"[" * 10**5 + b"1" + b"]" * 10**5
INPUT = (
    b'{"inputs":[{"name":"hit_table_hit_id","datatype":"INT32","shape":[1],"data":%b}]}' % NESTED
)
# The whole of it is JSON, whatever the header says.
GENERATE = b'{"hit_table_hit_id":%b}' % NESTED
LENGTH = "Inference-Header-Content-Length"
IN_PIECES = (b"1\r\n \r\n" * 10**6 + b"0\r\n\r\n", {LENGTH: "9999", "Transfer-Encoding": "chunked"})


@pytest.mark.parametrize(
    ("asks", "body", "headers"),
    [
        pytest.param("infer", INPUT, {}, id="JSON"),
        pytest.param("infer", INPUT, {LENGTH: str(len(INPUT))}, id="declared"),
        pytest.param("infer", INPUT, {LENGTH: f"{len(INPUT)}, 10"}, id="declared twice"),
        pytest.param("generate", GENERATE, {LENGTH: "4"}, id="generate"),
        pytest.param("generate_stream", GENERATE, {LENGTH: "4"}, id="generate_stream"),
        pytest.param("infer", gzip.compress(INPUT), {"Content-Encoding": "gzip"}, id="compressed"),
        pytest.param("infer", *IN_PIECES, id="in a million pieces"),
    ],
)
def test_a_request_that_would_end_tritons_http_ends_no_server(kit, door, asks, body, headers):
    """Triton 2.51's, if it came to it."""
    living = [psutil.Process(kit.noted(name)["server"]["pid"]) for name in NAMES]
    with door.https() as client, suppress(OSError):  # it may be refused before it has been sent
        client.request("POST", f"/v2/models/nugraph3/{asks}", body, headers)
        assert client.getresponse().status >= http.client.BAD_REQUEST
    for each in living:
        assert each.is_running()
        assert each.status() != psutil.STATUS_ZOMBIE


def test_a_compressed_message_is_refused(door):
    with (
        door.channel(compression=grpc.Compression.Gzip) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        channel.unary_unary(INFER)(bytes(100_000), timeout=SOON_S)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
