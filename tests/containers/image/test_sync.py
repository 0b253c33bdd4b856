"""A server and its sync agent from one image, with one folder, as the two containers of a pod."""

import urllib.request
from typing import Any

from docker.types import Mount

from tests.bucket import READER, S3, bucket  # noqa: F401
from tests.containers.conftest import HEALTH
from tests.kit import free_ports, until
from tests.synced import MODELS, Publisher, make_house
from tests.syncing import POLL_S


def test_a_locked_down_pair_serves_a_bucket(
    runner,
    image,
    bucket,  # noqa: F811
    tmp_path,
):
    house = make_house(tmp_path / "versions")
    publisher = Publisher(house, bucket, "pair")
    folder = tmp_path / "models"
    served = folder / "repository"
    served.mkdir(parents=True)
    for each in (folder, served):
        each.chmod(0o777)
    ports, status = free_ports(), free_ports().http
    where = {
        "NUML_LISTEN": "127.0.0.1",
        "NUML_HTTP_PORT": str(ports.http),
        "NUML_GRPC_PORT": str(ports.grpc),
        "NUML_METRICS_PORT": str(ports.metrics),
    }
    options: dict[str, Any] = {
        "user": "1000660000:0",  # as OpenShift chooses one
        "ports": {},
        "network_mode": "host",
    }
    reads = [Mount("/models/repository", str(served), type="bind", read_only=True)]
    writes = [Mount("/models", str(folder), type="bind")]
    repository = {"NUML_MODELS": "/models/repository"}
    server = runner.start(image.tag, environment=where | repository, mounts=reads, **options)
    words = ("/opt/numl/bin/sync", publisher.url, "/models", f"--poll={POLL_S}")
    keys = bucket.variables(READER)
    agent = runner.start(
        image.tag, *words, f"--status-port={status}",
        environment=where | keys, mounts=writes, **options,
    )  # fmt: skip
    until(
        lambda: server.exec(HEALTH)[1] == "unhealthy: /models/repository has no models yet\n",
        "an empty server",
    )

    def metric(line: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{status}/metrics", timeout=5) as answer:
                return line in answer.read().decode().splitlines()
        except OSError:  # it starts
            return False

    for number in (1, 2):
        publisher.publish(number, number)
        until(lambda line=f"numl_sync_release {number}": metric(line), agent.logs())
        healthy = f"healthy: {', '.join(MODELS)} gave their golden answers\n"
        assert server.exec(HEALTH) == (0, healthy), server.logs()
        there = [path.name for path in folder.glob("repository/nugraph3/*/")]
        assert there == [str(number)]
    release = [
        "sync: release 2 is published",
        "sync: release 2 is in /models/repository",
        "sync: release 2 serves: nugraph2_cpu version 2, nugraph3 version 2",
    ]
    assert agent.logs().splitlines()[-3:] == release
    assert agent.stop() == 0
