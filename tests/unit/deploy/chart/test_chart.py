"""The Helm chart: what it renders for each kind of site, and what it refuses."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import kubernetes_validate
import pytest
import yaml

from deploy.deployment.deployment import DEFAULT_MODELS
from tests.certificates import Authority
from tests.chart import (
    CHART,
    RENDERED,
    SITES,
    Object,
    Site,
    find,
    render,
    render_notes,
    render_text,
    stored,
)
from tests.programs import run_program

SELECTOR = {"app.kubernetes.io/name": "numl", "app.kubernetes.io/instance": "numl"}
KEY = {  # RFC 7517, A.1
    "kty": "EC",
    "crv": "P-256",
    "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
    "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM",
}
ROUTE = {"termination": "reencrypt"}
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
OTHERS = {"Route", "GRPCRoute", "ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"}
"""Kinds that Kubernetes' own schemas do not have."""


def test_each_site_gets_what_is_stored():
    # After a change that is meant: .venv/bin/python -m tests.chart, and read the difference.
    assert stored() == {name: (RENDERED / f"{name}.yaml").read_text() for name in SITES}


@pytest.mark.parametrize("name", SITES)
def test_helm_finds_nothing_to_complain_of(name):
    report = helm.lint(CHART, SITES[name].merged(), strict=True)
    wrong = [m for m in report["messages"] if m["error"] != "icon is recommended"]
    assert (wrong, report["errors"]) == ([], [])


def test_the_packed_chart_has_all_that_the_folder_has(tmp_path):
    site = SITES["everything"]
    packed = Path(helm.package(CHART, destination=tmp_path))
    assert render_text(site, packed) == render_text(site)


def pods(objects: list[Object]) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in objects:
        if each["kind"] == "Deployment":
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", SITES)
def test_kubernetes_takes_every_object_and_every_pod_keeps_to_the_level_restricted(name):
    objects = render(SITES[name])
    known = [each for each in objects if each["kind"] not in OTHERS]
    assert len(known) > 3
    for each in known:
        kubernetes_validate.validate(each, "1.37", strict=True)
    for _, pod in pods(objects):
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(pod)
        for container in pod["containers"]:
            security = dict(container["securityContext"])
            security.pop("runAsUser", None)
            assert security == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"emptyDir", "secret", "configMap"}


def test_shared_memory_grows_with_the_model_processes():
    def shm(**values: Any) -> str:
        pod = dict(pods(render(Site((), values))))["numl"]
        [size] = [v["emptyDir"] for v in pod["volumes"] if v["name"] == "shm"]
        assert size["medium"] == "Memory"
        return str(size["sizeLimit"])

    assert shm() == f"{len(DEFAULT_MODELS) * 3 * 64}Mi"
    assert shm(models=["nugraph3"], instances=4, shmMiPerInstance=100) == "400Mi"


def test_the_values_name_the_models_of_the_image():
    assert yaml.safe_load((CHART / "values.yaml").read_text())["models"] == list(DEFAULT_MODELS)


def test_a_router_may_end_tls_and_begin_it_again():
    route = ROUTE | {"certificateSecret": "site", "destinationCA": PEM}
    [made] = [o for o in render(Site(("cpu", "okd"), {"route": route})) if o["kind"] == "Route"]
    assert made["spec"]["tls"] == {
        "termination": "reencrypt",
        "insecureEdgeTerminationPolicy": "None",
        "externalCertificate": {"name": "site"},
        "destinationCACertificate": PEM,
    }


def test_a_pod_is_given_its_drain_and_then_its_stop():
    pod = dict(pods(render(Site((), {"drainSeconds": 40, "stopSeconds": 50}))))["numl"]
    [server] = pod["containers"]
    assert server["lifecycle"]["preStop"]["exec"]["command"] == ["/bin/sleep", "40"]
    assert pod["terminationGracePeriodSeconds"] == 90
    assert "--exit-timeout-secs=45" in server["args"]
    # A connection ends within the drain, and its client goes to another pod.
    assert "--grpc-max-connection-age=20000" in server["args"]


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("s3://https://s3.example.org/models", 443),
        ("s3://https://s3.example.org:9000/models/a:1", 9000),
        ("s3://http://s3.example.org/models", 80),
        ("s3://s3.example.org:8333/models", 8333),
        ("s3://models/nugraph", 443),
    ],
)
def test_the_way_out_is_to_the_port_of_the_bucket(url, port):
    policy = find(render(Site((), {"bucket": {"url": url}})), "NetworkPolicy")
    assert policy["spec"]["egress"][-1] == {"ports": [{"port": port, "protocol": "TCP"}]}


def test_where_clients_need_names_nobody_reads_metrics_without_being_named():
    def from_whom(**policy: Any) -> list[list[Object]]:
        site = Site(SITES["tenants"].files, {**SITES["tenants"].values, "networkPolicy": policy})
        return [e["from"] for e in find(render(site), "NetworkPolicy")["spec"]["ingress"]]

    front = {"podSelector": {"matchLabels": SELECTOR | {"app.kubernetes.io/component": "front"}}}
    assert from_whom() == [[front]]
    named = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    assert from_whom(monitoring=named) == [[front], named]


def test_envoy_s_heap_leaves_a_quarter_of_the_memory():
    def heap(memory: str) -> int:
        site = Site(("cpu",), {"frontDoor": {"resources": {"limits": {"memory": memory}}}})
        config = yaml.safe_load(find(render(site), "ConfigMap", "numl-front")["data"]["envoy.yaml"])
        monitor = config["overload_manager"]["resource_monitors"][0]
        return int(monitor["typed_config"]["max_heap_size_bytes"])

    assert heap("1Gi") == 3 * (1 << 28)
    assert heap("512Mi") == 3 * (1 << 27)


@pytest.mark.parametrize(("running", "kept"), [(7, 7), (1, 2)])
def test_a_release_that_gets_a_scaler_keeps_its_pods(running, kept, tmp_path):
    chart = shutil.copytree(CHART, tmp_path / "numl")
    server = chart / "templates/server.yaml"
    asks = 'lookup "apps/v1" "Deployment" .Release.Namespace (include "numl.name" .)'
    assert asks in server.read_text()
    found = f'dict "spec" (dict "replicas" {running})'  # as a cluster would say
    server.write_text(server.read_text().replace(asks, found))
    assert find(render(SITES["hpa"], chart), "Deployment")["spec"]["replicas"] == kept


def test_a_rollback_to_the_first_revision_keeps_the_least_pods_of_a_scaler():
    """Without the field, as where Helm finds no Deployment yet, Kubernetes would run one pod."""
    site = Site((), {"autoscaling": {"kind": "keda", "minReplicas": 3}})
    assert find(render(site), "Deployment")["spec"]["replicas"] == 3


def test_a_scaler_that_nothing_tells_how_long_requests_wait_is_told_of():
    said = "Autoscaling adds no pod unless Prometheus has the pods' metrics"
    assert said in render_notes(SITES["hpa"])
    assert said not in render_notes(SITES["everything"])  # with a ServiceMonitor
    assert said not in render_notes(SITES["laptop"])


def door(**more: Any) -> dict[str, Any]:
    return {"frontDoor": {"enabled": True, "tlsSecret": "tls", **more}}


def tenants(**subjects: str) -> dict[str, Any]:
    clients = [{"name": name, "subject": subject} for name, subject in subjects.items()]
    return {"by": "certificate", "configMap": "people", "clients": clients}


DUNE = tenants(dune="CN=dune")
TWICE = {**DUNE, "clients": DUNE["clients"] * 2}
ALIKE = tenants(dune="CN=x", icarus="CN=x")
UNGUARDED = {"networkPolicy": {"enabled": False}}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicas": "three"}, "at '/replicas': got string, want integer"),
        ({"replica": 3}, "at '': additional properties 'replica' not allowed"),
        ({"device": "tpu"}, "at '/device': value must be one of 'cpu', 'gpu'"),
        ({"models": []}, "at '/models': minItems: got 0, want 1"),
        ({"bucket": {"url": "https://s3"}}, "at '/bucket/url': 'https://s3' does not match patt"),
        (
            {"bucket": {"url": "s3://x"}, "verify": {"key": {"configMap": "a", "secret": "b"}}},
            "verify.key: name a ConfigMap or a Secret, not both",
        ),
        ({"gateway": {"enabled": True}}, "at '/gateway/parentRefs': minItems: got 0, want 1"),
        ({"resources": {"limits": {"memory": None}}}, "at '/resources/limits': missing property"),
        ({"frontDoor": {"enabled": True}}, "frontDoor.tlsSecret: name a Secret"),
        (door(image=""), "frontDoor.image: name Envoy by its digest"),
        (door(image="envoy:v1.40.0"), "at '/frontDoor/image': 'envoy:v1.40.0' does not match patt"),
        (
            door(resources={"limits": {"memory": "1G"}}),
            "at '/frontDoor/resources/limits/memory': '1G' does not match pattern",
        ),
        (door(tenants=tenants()), "at '/frontDoor/tenants/clients': minItems: got 0, want 1"),
        (door(tenants=DUNE) | UNGUARDED, "frontDoor.tenants needs networkPolicy.enabled"),
        ({"frontDoor": {"tenants": DUNE}}, "frontDoor.tenants needs frontDoor.enabled"),
        (door(tenants=TWICE), "frontDoor.tenants.clients: two have the name dune"),
        (door(tenants=ALIKE), "frontDoor.tenants.clients: two have the subject CN=x"),
        (
            door() | {"gateway": {"enabled": True, "parentRefs": [{"name": "site"}]}},
            "gateway.enabled and frontDoor.enabled: choose one",
        ),
        ({"route": {"enabled": True}}, "route.enabled needs frontDoor.enabled"),
        (
            door(tenants=DUNE) | {"route": {"enabled": True, "termination": "reencrypt"}},
            "route.termination reencrypt ends clients' TLS, and their certificates with it",
        ),
        (
            {"autoscaling": {"kind": "keda", "minReplicas": 5, "maxReplicas": 2}},
            "autoscaling.minReplicas is above autoscaling.maxReplicas",
        ),
        ({"verify": {"key": {"configMap": "key"}}}, "verify.key needs bucket.url"),
        (
            {"bucket": {"url": "s3://x"}, "verify": {"minSequence": 12}},
            "verify.minSequence needs verify.key",
        ),
        (
            {"rollout": {"maxSurge": 0, "maxUnavailable": "0%"}},
            "rollout: with maxSurge and maxUnavailable both 0 no pod can be replaced",
        ),
        ({"rollout": {"maxSurge": -1}}, "at '/rollout/maxSurge': minimum: got -1, want 0"),
        (
            {"rollout": {"maxUnavailable": "some"}},
            "at '/rollout/maxUnavailable': 'some' does not match pattern",
        ),
        # Alerts would be raised between two polls, and between two checks.
        ({"bucket": {"pollSeconds": 121}}, "at '/bucket/pollSeconds': maximum: got 121, want 120"),
        ({"watch": {"seconds": 301}}, "at '/watch/seconds': maximum: got 301, want 300"),
    ],
)
def test_wrong_values_are_refused_in_a_line(values, said):
    with pytest.raises(helm.HelmError) as refused:
        render(Site((), values))
    assert said in str(refused.value).strip().splitlines()[-1]


def test_no_default_can_be_taken_away_with_null_but_those_that_need_not_be():
    """Helm drops what is null: without `networkPolicy.dns` a pod could ask any host's port 53."""

    def defaults(values: dict[str, Any], *above: str) -> Iterator[tuple[str, ...]]:
        for key, value in values.items():
            if value:
                yield (*above, key)
            if isinstance(value, dict):
                yield from defaults(value, *above, key)

    def is_refused(path: tuple[str, ...]) -> bool:
        values: Any = None
        for key in reversed(path):
            values = {key: values}
        try:
            render_text(Site((), values))
        except helm.HelmError as error:
            return f"missing property '{path[-1]}'" in str(error)
        return False

    given = yaml.safe_load((CHART / "values.yaml").read_text())
    storage = ("resources", "requests", "ephemeral-storage")
    assert {path for path in defaults(given) if not is_refused(path)} == {
        ("image", "tag"),
        ("frontDoor", "runAsUser"),
        *((*above, *storage) for above in ((), ("bucket",), ("frontDoor",))),
    }


def test_every_name_is_rendered_as_text():
    """One of digits alone is a number to YAML, unless it is quoted."""
    name = "123"
    by_token = SITES["tenants"].values["frontDoor"]["tenants"] | {
        "configMap": name,
        "clients": [{"name": name, "subject": name}],
    }
    site = Site(
        SITES["tenants"].files,
        {
            "image": {"pullSecrets": [name]},
            "priorityClassName": name,
            "bucket": {"url": "s3://x", "credentialsSecret": name, "caConfigMap": name},
            "verify": {"key": {"secret": name}},
            "frontDoor": {"tlsSecret": name, "tenants": by_token},
            "route": ROUTE | {"enabled": True, "host": name, "certificateSecret": name},
            "serviceMonitor": {"enabled": True},
            "autoscaling": {"kind": "keda"},
        },
    )

    def leaves(value: Any) -> Iterator[Any]:
        inner = value.values() if isinstance(value, dict) else value
        for each in inner if isinstance(value, dict | list) else ():
            yield from leaves(each)
        yield value

    objects = render(site, release=name, namespace=name)
    door = find(objects, "ConfigMap", "123-numl-front")["data"]["envoy.yaml"]
    for each in (*objects, yaml.safe_load(door)):
        assert [leaf for leaf in leaves(each) if leaf == int(name)] == []


def test_the_schema_knows_no_value_that_there_is_not():
    def names(schema: dict[str, Any], given: Any) -> Iterator[str]:
        for key, inner in schema.get("properties", {}).items():
            if key not in given:
                yield key
            elif isinstance(given[key], dict):
                yield from names(inner, given[key])

    schema = json.loads((CHART / "values.schema.json").read_text())
    given = yaml.safe_load((CHART / "values.yaml").read_text())
    assert list(names(schema, given)) == ["global"]  # Helm's own


@pytest.mark.parametrize("name", ["cpu", "okd", "tenants"])
def test_envoy_takes_its_configuration(name, tmp_path):
    pair = Authority(tmp_path, "site").issue("localhost")
    pair.cert.rename(tmp_path / "tls.crt")
    pair.key.rename(tmp_path / "tls.key")
    for file, text in find(render(SITES[name]), "ConfigMap", "numl-front")["data"].items():
        for folder in ("/etc/envoy", "/etc/numl/tls", "/etc/numl/tenants"):
            text = text.replace(folder, str(tmp_path))
        (tmp_path / file).write_text(text)
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [KEY]}))
    envoy = Path(sys.executable).with_name("envoy")
    done = run_program([envoy, "--mode", "validate", "--config-path", tmp_path / "envoy.yaml"])
    assert done.returncode == 0, done.stderr
    assert "eprecated" not in done.stderr


def test_the_key_of_releases_may_be_in_a_secret_and_only_the_agent_can_write_models():
    values = {"bucket": {"url": "s3://models"}, "verify": {"key": {"secret": "release-key"}}}
    pod = find(render(Site((), values)), "Deployment")["spec"]["template"]["spec"]
    assert {"name": "verify", "secret": {"secretName": "release-key"}} in pod["volumes"]
    mounts = {
        each["name"]: [mount for mount in each["volumeMounts"] if mount["name"] == "models"]
        for each in pod["containers"]
    }
    path = "/models/repository"
    read = {"name": "models", "mountPath": path, "subPath": "repository", "readOnly": True}
    assert mounts == {"triton": [read], "sync": [{"name": "models", "mountPath": "/models"}]}
