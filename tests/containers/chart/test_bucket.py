"""The containers of a pod that serves a bucket: as rendered, before a real S3 with TLS."""

import re
import urllib.request
from typing import Any

from docker.types import Mount

from tests.bucket import READER
from tests.chart import Site, find, render
from tests.containers.conftest import HEALTH
from tests.kit import free_ports, until
from tests.synced import MODELS, Publisher, make_house


def test_the_pod_serves_a_bucket_under_a_private_authority(runner, image, bucket, tmp_path):
    publisher = Publisher(make_house(tmp_path / "versions"), bucket, "pod")
    url = publisher.url.replace(bucket.url, bucket.https)
    given = {"url": url, "pollSeconds": 1, "credentialsSecret": "keys", "caConfigMap": "site"}
    values = {"models": list(MODELS), "bucket": given, "watch": {"enabled": True, "seconds": 1}}
    pod = find(render(Site((), values)), "Deployment")
    server, sync, watch = pod["spec"]["template"]["spec"]["containers"]

    # What the cluster would mount: the Secret's keys and the ConfigMap's are files.
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "credentials").write_text(
        f"[default]\naws_access_key_id = {READER[0]}\naws_secret_access_key = {READER[1]}\n"
    )
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "ca.crt").write_bytes(bucket.ca.read_bytes())
    for folder in ("models", "models/repository"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder).chmod(0o777)
    folders = {"models": "models", "aws": "keys", "ca": "site"}
    ports, others = free_ports(), free_ports()
    # They share the pod's network, and here the host's: hence other ports.
    where = {
        "NUML_LISTEN": "127.0.0.1",
        "NUML_HTTP_PORT": str(ports.http),
        "NUML_GRPC_PORT": str(ports.grpc),
        "NUML_METRICS_PORT": str(ports.metrics),
    }

    def start(container: dict[str, Any]) -> Any:
        return runner.start(
            image.tag,
            *(
                word.replace("8003", str(others.http)).replace("8004", str(others.metrics))
                for word in container["args"]
            ),
            environment=where | {each["name"]: each["value"] for each in container["env"]},
            mounts=[
                Mount(
                    mount["mountPath"],
                    str(tmp_path / folders[mount["name"]] / mount.get("subPath", "")),
                    type="bind",
                    read_only=mount.get("readOnly", False),
                )
                for mount in container["volumeMounts"]
                if mount["name"] in folders
            ],
            user="1000660000:0",  # as OpenShift chooses one
            ports={},
            network_mode="host",
        )

    def judged() -> set[tuple[str, str]]:
        """Return the models and the states that the watch tells."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{others.metrics}/metrics") as answer:
                text = answer.read().decode()
        except OSError:
            return {("", "no watch yet")}
        rows = re.findall(r'numl_smoke_state{.*model="(.*)",state="(.*)"} 1', text)
        return {(model, state) for model, state in rows}

    serving, agent, watcher = start(server), start(sync), start(watch)
    ready = server["readinessProbe"]["exec"]["command"]
    until(lambda: "does not listen" not in serving.exec(*ready)[1], "a server")
    assert serving.exec(*ready) == (1, f"model {MODELS[0]} is not ready\n")
    until(lambda: judged() == set(), "a watch without models")
    publisher.publish(1, 1)
    until(lambda: serving.exec(*ready)[0] == 0, "the models of the bucket")
    assert serving.exec(HEALTH)[0] == 0, serving.logs() + agent.logs()
    right = {(model, "right") for model in MODELS}
    until(lambda: judged() == right, "the watch's verdict")
    serving.container.kill()
    until(lambda: {state for _, state in judged()} == {"unreachable"}, "its end")
    assert watcher.logs().count(": right\n") == len(MODELS)
