"""What is rendered and refused before any cluster is asked."""

from __future__ import annotations

import pytest
import yaml

from deploy.deployment.deployment import Deployment
from deploy.engines.chart import validate
from deploy.engines.cluster import KINDS
from deploy.engines.kubernetes import KubernetesEngine
from deploy.engines.pods import KIT_CONTAINERS, SERVER, component_of
from deploy.host.paths import CHECKOUT
from tests.chart import SITES, render
from tests.unit.deploy.engines.cluster.terminal import IMAGE, Terminal


def test_a_dry_run_shows_what_would_be_applied_and_asks_no_cluster(terminal: Terminal) -> None:
    code, out, _ = terminal.type(f"up --engine kubernetes --dry-run --image {IMAGE}")
    objects = list(yaml.safe_load_all(out))
    kinds = ["ServiceAccount", "Service", "NetworkPolicy", "PodDisruptionBudget", "Deployment"]
    assert (code, [each["kind"] for each in objects]) == (0, kinds)
    assert objects[-1]["spec"]["template"]["spec"]["containers"][0]["image"] == IMAGE
    assert terminal.json(f"up --engine kubernetes --dry-run --image {IMAGE}")["objects"] == objects
    assert terminal.cluster.requests == []


def test_the_deployment_s_settings_become_values_over_those_of_the_files(
    terminal: Terminal,
) -> None:
    (terminal.folder / "more.yaml").write_text("replicas: 5\ninstances: 9\n")
    file = terminal.site(
        'name = "shift"\nmodels = ["nugraph3"]\ninstances = 4\ncpus = 8\nmemory = "6GiB"\n'
        'timeout = 90\nflavour = "gpu"\n'
        '[kubernetes]\nnamespace = "physics"\nvalues = ["cpu", "more.yaml"]\n'
    )
    objects = terminal.json(f"up --dry-run {file}")["objects"]
    assert {each["metadata"]["namespace"] for each in objects} == {"physics"}
    servers = {o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] == "Deployment"}
    server, pod = servers["shift-numl"], servers["shift-numl"]["template"]["spec"]
    main = pod["containers"][0]
    assert server["replicas"] == 5
    assert server["progressDeadlineSeconds"] == 150
    assert main["args"] == ["--gpu"]
    assert main["readinessProbe"]["exec"]["command"][2:] == ["nugraph3"]
    assert main["resources"] == {
        "requests": {"cpu": "8", "memory": "6442450944", "nvidia.com/gpu": 1},
        "limits": {"memory": "6442450944", "nvidia.com/gpu": 1},
    }
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}} in pod["volumes"]


def test_an_older_cluster_gets_its_older_kinds() -> None:
    def versions(version: str, kind: str) -> set[str]:
        deployment = Deployment.model_validate({"engine": "kubernetes"})
        engine = KubernetesEngine(deployment)
        engine.values = lambda: {"autoscaling": {"kind": "hpa"}}  # type: ignore[method-assign]
        objects = engine.render("physics", version)
        validate(objects, version)
        return {each["apiVersion"] for each in objects if each["kind"] == kind}

    for version, budget, scaler in (
        ("v1.20.2", "policy/v1beta1", "autoscaling/v2beta2"),
        ("v1.22.3+bbbc079", "policy/v1", "autoscaling/v2beta2"),
        ("v1.33.0", "policy/v1", "autoscaling/v2"),
    ):
        assert versions(version, "PodDisruptionBudget") == {budget}
        assert versions(version, "HorizontalPodAutoscaler") == {scaler}


def test_every_kind_that_the_chart_renders_is_known() -> None:
    assert {each["kind"] for site in SITES.values() for each in render(site)} == set(KINDS)


def test_every_container_of_a_server_is_known_as_one_of_the_kit_s() -> None:
    [server] = [
        each["spec"]["template"]["spec"]
        for each in render(SITES["everything"])
        if each["kind"] == "Deployment" and component_of(each) == SERVER
    ]
    assert tuple(each["name"] for each in server["containers"]) == KIT_CONTAINERS
    assert len({each["image"] for each in server["containers"]}) == 1


@pytest.mark.parametrize(
    ("words", "text", "said"),
    [
        (
            "--ports 1,2,3",
            "",
            "ports does not apply to engine kubernetes: the chart's Services have",
        ),
        ("--listen 0.0.0.0", "", "listen does not apply to engine kubernetes"),
        (
            "--gpu 0",
            "",
            "devices does not apply to engine kubernetes: the cluster chooses the GPUs",
        ),
        (
            "--threads 4",
            "",
            "threads does not apply to engine kubernetes: the image has the kit's own",
        ),
        ("--name a.b", "", "name: 'a.b' is not a name for Kubernetes"),
        ("", '[kubernetes]\nvalues = ["tpu"]', "kubernetes.values: the chart has no 'tpu'"),
        ("", '[kubernetes]\nvalues = ["no.yaml"]', "no.yaml: No such file or directory"),
        ("", '[kubernetes]\nspace = "x"', "kubernetes.space: no such key"),
        ("--image a.sif --verify k", "", "k: No such file or directory"),
        ("--namespace A_B", "", "--namespace: 'A_B' is not"),
        ("", "kubernetes = 1", "kubernetes: expected a table with context"),
        ("--instances 0", "", "--instances: 0 is not a whole number from 1"),
    ],
)
def test_what_makes_no_sense_in_a_cluster_is_refused_in_a_line(
    words: str, text: str, said: str, terminal: Terminal
) -> None:
    code, _, err = terminal.type(f"up {terminal.site(text)} --dry-run {words}")
    assert code != 0
    assert said in err.splitlines()[0]


def test_own_weights_are_for_a_bucket(terminal: Terminal) -> None:
    weights = '[checkpoints]\nnugraph3 = "weights"\n'
    code, _, err = terminal.type(f"up {terminal.site(weights)} --dry-run")
    assert (code, "publish others to a bucket" in err) == (2, True)
    (terminal.folder / "bucket.yaml").write_text("bucket: {url: 's3://https://s3/models'}\n")
    both = f'{weights}[kubernetes]\nvalues = ["bucket.yaml"]\n'
    assert terminal.type(f"up {terminal.site(both)} --dry-run")[0] == 0


def test_the_site_file_that_is_given_renders_for_openshift(terminal: Terminal) -> None:
    file = CHECKOUT / "deploy" / "sites" / "okd.toml"
    objects = terminal.json(f"up --dry-run {file} --image {IMAGE}")["objects"]
    [route] = [each for each in objects if each["kind"] == "Route"]
    assert (route["metadata"]["name"], route["metadata"]["namespace"]) == ("okd-numl", "physics")
