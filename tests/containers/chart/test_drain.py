"""Rolling restarts, scaling down and deaths, behind the chart's front door: no request is lost."""

import signal
import ssl

import psutil
import pytest

from deploy.client.endpoint import Endpoint
from deploy.client.probe import ask_golden
from deploy.client.transport import TritonTransport
from deploy.host.errors import KitError
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.golden import read_golden
from tests.certificates import Authority
from tests.chart import Site, render
from tests.containers.chart.cluster import Cluster
from tests.kit import until
from tests.load import Load

REQUESTS = 400
KILL_A_STUB = """
for folder in /proc/[0-9]*; do
  words=$(tr '\\0' ' ' <"$folder/cmdline")
  if [[ $words == /opt/tritonserver/*_stub*/nugraph3/1/model.py* ]]; then
    kill -KILL "${folder#/proc/}"
    break
  fi
done
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"), "site")


@pytest.fixture(scope="module")
def cluster(engine, image, authority, tmp_path_factory):
    """Three pods behind Envoy. A drain takes 8 s, enough for a DNS that is asked every 5 s."""
    objects = render(Site(("cpu",), {"drainSeconds": 8}))
    cluster = Cluster(engine, image.tag, objects, tmp_path_factory.mktemp("front"))
    try:
        with cluster.front_door(authority.issue(cluster.door)):
            for _ in range(3):
                cluster.start_pod()
            until(lambda: model_answers(cluster.url, authority), "the front door")
            yield cluster
    finally:
        cluster.close()


@pytest.fixture(autouse=True)
def every_pod_runs(cluster):
    """Whatever a test does, its pods are there afterwards."""
    yield
    for pod in cluster.pods:
        pod.assert_runs()


def model_answers(url: str, authority: Authority) -> bool:
    golden = read_golden(MODEL_REPOSITORY / "nugraph3" / "1" / "golden.npz")
    transport = TritonTransport(Endpoint.parse(url, ca=authority.file), timeout=5)
    try:
        return ask_golden(transport, "nugraph3", golden) is None
    except KitError:
        return False
    finally:
        transport.close()


def test_a_rolling_restart_of_all_three_loses_no_request(cluster, authority):
    with Load(cluster.url, authority.file, 1000) as load:
        cluster.roll()
    assert load.wrong == []
    assert load.asked >= 1000


def test_scaling_down_and_up_loses_no_request(cluster, authority):
    with Load(cluster.url, authority.file, REQUESTS) as load:
        cluster.end_pod(cluster.pods[0])
        cluster.start_pod()
        cluster.settle()
    assert load.wrong == []
    assert len(cluster.ended) == 4
    for pod in cluster.ended:
        status, log = pod.container.wait()["StatusCode"], pod.container.logs().decode()
        assert "Found 0 model versions that have in-flight inferences" in log
        # On a slow host Triton may end before it has unloaded its models.
        assert status == 0 or "Exit timeout expired. Exiting immediately." in log, log


def test_a_front_door_that_ends_sends_its_clients_on(cluster, authority):
    with Load(cluster.url, authority.file, REQUESTS) as load:
        cluster.drain_front_door()
    assert load.wrong == []


def test_a_renewed_certificate_is_used_without_a_restart(cluster, authority):
    def served() -> str:
        return ssl.get_server_certificate((cluster.door, 8443))

    before = served()
    cluster.give_certificate(authority.issue(cluster.door, name="renewed"))
    until(lambda: served() != before, "the renewed certificate")
    assert model_answers(cluster.url, authority)


def test_http_goes_through_the_same_door(cluster, authority):
    assert model_answers(cluster.url.replace("grpcs", "https"), authority)


def test_load_makes_no_pod_unready_and_restarts_none(cluster, authority):
    [pod, *_] = cluster.pods
    with Load(f"grpc://{pod.address}:8001", None, 500, clients=32) as load:
        until(lambda: load.asked > 50, "load")
        for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
            assert pod.exec(pod.spec[kind]["exec"]["command"]) == (0, "")
    assert load.wrong == []


def test_a_server_that_is_killed_costs_no_request(cluster, authority):
    # Nobody tells DNS, as if the node were gone.
    with Load(cluster.url, authority.file, REQUESTS) as load:
        until(lambda: load.asked > 100, "load")
        dead = cluster.pods[0]
        dead.container.kill(signal.SIGKILL)
    assert load.wrong == []
    cluster.pods.remove(dead)
    cluster.publish()


def test_a_model_process_that_is_killed_costs_no_request_and_its_pod_is_noticed(cluster, authority):
    with Load(cluster.url, authority.file, REQUESTS) as load:
        until(lambda: load.asked > 100, "load")
        [hurt, *_] = cluster.pods
        alive = hurt.spec["livenessProbe"]["exec"]["command"]
        assert hurt.exec(alive) == (0, "")
        hurt.exec(["bash", "-c", KILL_A_STUB])
        status, words = hurt.exec(alive)
        assert (status, words.split(":")[0]) == (1, "a model process has died")
        assert not hurt.ready()
        cluster.pods.remove(hurt)
        cluster.publish()
    assert load.wrong == []


def test_without_a_front_door_clients_connect_again_and_lose_nothing(engine, image, tmp_path):
    # A connection lives for half of the drain.
    alone = Cluster(engine, image.tag, render(Site((), {"drainSeconds": 1})), tmp_path)
    try:
        pod = alone.start_pod()
        ends: set[int] = set()

        def connected_again() -> bool:
            # gRPC reaches an IPv4 address through an IPv6 socket.
            there = [c for c in psutil.net_connections("tcp") if c.raddr and c.raddr.port == 8001]
            mine = (c for c in there if c.raddr.ip.removeprefix("::ffff:") == pod.address)
            ends.update(c.laddr.port for c in mine)
            return len(ends) > 3

        with Load(f"grpc://{pod.address}:8001", None, 200) as load:
            until(connected_again, "other connections")
        assert load.wrong == []
    finally:
        alone.close()
