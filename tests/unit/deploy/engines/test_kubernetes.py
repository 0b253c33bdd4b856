"""``--engine kubernetes``, from the command line, with a stand-in for the API server."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import doctor, down, logs, smoke, status, up
from deploy.deployment.deployment import Deployment
from deploy.deployment.state import DeploymentFolder
from deploy.engines import rollout
from deploy.engines.chart import validate
from deploy.engines.cluster import KINDS
from deploy.engines.kubernetes import KubernetesEngine
from deploy.host.paths import CHECKOUT
from tests.api_server import Cluster, Object, container, serve, write_kubeconfig
from tests.chart import SITES, render

DIGEST = f"sha256:{'ab' * 32}"
IMAGE = f"registry.example.org/lab/numl@{DIGEST}"
COMMANDS = {"up": up, "status": status, "logs": logs, "smoke": smoke, "down": down}


@dataclass
class Terminal:
    """Where a person types commands; the words of one, then its status and both outputs."""

    cluster: Cluster
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def type(self, line: str) -> tuple[int, str, str]:
        command, *words = line.split()
        module = {**COMMANDS, "doctor": doctor}[command]
        try:
            code = module.main(words)
        except SystemExit as ended:
            code = int(str(ended.code))
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def json(self, line: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.type(f"{line} --json")[1])
        return document

    def site(self, text: str) -> Path:
        file = self.folder / "site.toml"
        file.write_text(f'engine = "kubernetes"\n{text}')
        return file


@pytest.fixture
def terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Terminal]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(rollout, "_POLL_S", 0.01)
    monkeypatch.setattr(rollout, "PATIENCE_S", 0.1)
    cluster = Cluster()
    with serve(cluster) as url:
        file = tmp_path / "kubeconfig"
        write_kubeconfig(file, url)
        # Read from the environment when it is imported, once for all tests.
        where = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
        monkeypatch.setattr(where, str(file))
        yield Terminal(cluster, tmp_path, capsys)


def waiting(reason: str, message: str) -> Callable[[Object], Object]:
    def made(pod: Object) -> Object:
        main = pod["spec"]["containers"][0]
        state = {"waiting": {"reason": reason, "message": message}}
        return {"containerStatuses": [container(main["name"], main["image"], state)]}

    return made


# What is rendered.


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


@pytest.mark.parametrize(
    ("words", "text", "said"),
    [
        ("--ports 1,2,3", "", "ports is not for engine kubernetes: the chart's Services have"),
        ("--listen 0.0.0.0", "", "listen is not for engine kubernetes"),
        ("--gpu 0", "", "devices is not for engine kubernetes: the cluster chooses the GPUs"),
        ("--threads 4", "", "threads is not for engine kubernetes: the image has the kit's own"),
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


# In the cluster.


def test_a_deployment_comes_up_is_seen_asked_and_goes_again(terminal: Terminal) -> None:
    code, out, err = terminal.type(f"up --engine kubernetes --image {IMAGE}")
    assert (code, "Kubernetes" in err) == (0, False)
    assert out.splitlines()[0] == "deployment numl: namespace physics of site"
    assert IMAGE in out
    kinds = {kind for kind, _ in terminal.cluster.names()}
    assert kinds == {
        *("ServiceAccount", "Service", "NetworkPolicy", "PodDisruptionBudget", "Deployment")
    }

    code, out, _ = terminal.type("status")
    assert (code, out.splitlines()[0]) == (0, "deployment numl: healthy")
    assert "namespace physics of site: 1 of 1 pods of the server are ready" in out
    [pod] = terminal.json("status")["pods"]
    assert (pod["ready"], pod["restarts"], pod["image"]) == (True, 0, IMAGE)

    terminal.cluster.logs[pod["name"], "triton", False] = "one\ntwo\nthree\n"
    assert terminal.type("logs --tail 2") == (0, "two\nthree\n", "")

    code, out, _ = terminal.type("smoke")
    assert (code, "ok: 3 models give their reference answers" in out) == (0, True)
    terminal.cluster.health = (1, "model nugraph3 answers wrongly")
    code, _, err = terminal.type("smoke")
    assert (code, f"pod {pod['name']}: model nugraph3 answers wrongly" in err) == (1, True)

    assert terminal.json("down")["stopped"] == ["numl"]
    assert terminal.cluster.names() == set()
    assert not DeploymentFolder("numl").path.exists()


def test_another_host_needs_the_name_and_the_namespace_only(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal.type("up --engine kubernetes --name shift")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert terminal.type("status --name shift")[0] == 1
    assert terminal.type("status --name shift --namespace physics")[0] == 0
    code, _, err = terminal.type("status --name other --namespace physics")
    assert (code, "no deployment named 'other' in namespace physics" in err) == (1, True)
    assert terminal.json("down --name shift --namespace physics")["stopped"] == ["shift"]
    assert terminal.cluster.names() == set()


def test_up_again_upgrades_and_removes_what_is_no_longer_asked_for(terminal: Terminal) -> None:
    (terminal.folder / "more.yaml").write_text("frontDoor: {enabled: true, tlsSecret: tls}\n")
    file = terminal.site('[kubernetes]\nvalues = ["more.yaml"]\n')
    assert terminal.type(f"up {file}")[0] == 0
    assert ("ConfigMap", "numl-front") in terminal.cluster.names()
    assert terminal.json("status")["ready"]["front"] == {"ready": 2, "wanted": 2}
    file = terminal.site("")
    assert terminal.type(f"up {file} --image {IMAGE}")[0] == 0
    assert not {name for _, name in terminal.cluster.names() if "front" in name}
    assert [pod["image"] for pod in terminal.json("status")["pods"]] == [IMAGE]


@pytest.mark.parametrize(
    ("pod", "cause", "remedy"),
    [
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "x"'),
            'cannot be pulled: Back-off pulling image "x"',
            "check --image",
        ),
        (
            waiting("CreateContainerConfigError", 'secret "aws" not found'),
            'container triton: secret "aws" not found',
            "numlkit doctor",
        ),
    ],
)
def test_a_first_launch_that_fails_says_why_and_leaves_nothing(
    pod: Callable[[Object], Object], cause: str, remedy: str, terminal: Terminal
) -> None:
    terminal.cluster.pod = pod
    code, _, err = terminal.type("up --engine kubernetes")
    *_, said, tried = err.splitlines()
    assert code == 1
    assert cause in said
    assert remedy in tried
    assert terminal.cluster.names() == set()
    assert not DeploymentFolder("numl").path.exists()


def test_a_server_that_crashes_is_told_by_its_last_words(terminal: Terminal) -> None:
    def crashed(pod: Object) -> Object:
        main = pod["spec"]["containers"][0]
        log = "ModuleNotFoundError: No module named 'pynuml'\nerror: creating server\n"
        terminal.cluster.logs[pod["metadata"]["name"], "triton", True] = log
        state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
        last = {"terminated": {"exitCode": 1, "reason": "Error"}}
        counted = {"restartCount": 2, "lastState": last}
        return {"containerStatuses": [container(main["name"], main["image"], state, **counted)]}

    terminal.cluster.pod = crashed
    code, _, err = terminal.type("up --engine kubernetes")
    assert (code, "container triton ended with status 1: " in err) == (1, True)
    assert "pynuml" in err


@pytest.mark.parametrize(("restarts", "lasting"), [(1, False), (3, True)])
def test_a_server_between_two_crashes_is_not_taken_for_one_that_starts(
    restarts: int, lasting: bool
) -> None:
    # As a real kubelet was seen to say it of a pod that runs out of memory again and again.
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    status = container("triton", IMAGE, {"running": {}}, restartCount=restarts, lastState=last)
    labels = {"app.kubernetes.io/component": "server"}
    pod = {
        "metadata": {"name": "numl-0", "labels": labels},
        "status": {"containerStatuses": [status]},
    }
    found = rollout.read_pod(pod)
    assert found.problem == "container triton ended with status 137 (OOMKilled)"
    assert found.lasting is lasting


def test_what_no_node_takes_is_waited_for_until_the_cluster_gives_up(terminal: Terminal) -> None:
    said = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    unschedulable = {"type": "PodScheduled", "status": "False", "message": said}
    terminal.cluster.pod = lambda _: {"conditions": [unschedulable]}
    terminal.cluster.gave_up = True
    code, _, err = terminal.type("up --engine kubernetes")
    assert (code, f"no node takes it: {said}" in err, "kubectl describe nodes" in err) == (
        *(1, True, True),
    )


def test_a_model_that_never_becomes_ready_is_named(terminal: Terminal) -> None:
    def unready(pod: Object) -> Object:
        why = "Startup probe failed: model nugraph3 is not ready"
        terminal.cluster.event(pod["metadata"]["name"], why)
        main = pod["spec"]["containers"][0]
        return {"containerStatuses": [container(main["name"], main["image"], {"running": {}})]}

    terminal.cluster.pod, terminal.cluster.gave_up = unready, True
    code, _, err = terminal.type("up --engine kubernetes")
    assert (code, "model nugraph3 is not ready" in err) == (1, True)


def test_an_upgrade_that_fails_leaves_the_old_pods_and_says_how_to_go_back(
    terminal: Terminal,
) -> None:
    assert terminal.type(f"up --engine kubernetes --image {IMAGE}")[0] == 0
    terminal.cluster.pod = waiting("ImagePullBackOff", "not found")
    code, _, err = terminal.type("up --engine kubernetes --image registry.example.org/lab/numl:new")
    assert code == 1
    assert f"the old pods serve on, and up with the former settings (--image {IMAGE})" in err
    state = terminal.json("status")
    assert [pod["ready"] for pod in state["pods"] if pod["image"] == IMAGE] == [True]
    terminal.cluster.pod = Cluster().pod
    assert terminal.type(f"up --engine kubernetes --image {IMAGE}")[0] == 0
    assert [pod["image"] for pod in terminal.json("status")["pods"]] == [IMAGE]


@pytest.mark.parametrize("first", [True, False])
def test_an_interrupted_first_launch_leaves_nothing_and_an_upgrade_is_said_to_go_on(
    first: bool, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if not first:
        assert terminal.type("up --engine kubernetes")[0] == 0
    monkeypatch.setattr(rollout.Rollout, "wait", interrupt)
    code, _, err = terminal.type("up --engine kubernetes")
    if first:
        assert (code, terminal.cluster.names()) == (130, set())
    else:
        assert (code, "interrupted: the cluster goes on with the upgrade" in err) == (1, True)
        assert terminal.cluster.names() != set()


def test_admission_is_asked_before_anything_is_made_of_pods_too(terminal: Terminal) -> None:
    said = 'pods "numl-" is forbidden: violates PodSecurity "restricted:latest"'
    terminal.cluster.refuse = lambda each: said if each["kind"] == "Pod" else None
    code, _, err = terminal.type("up --engine kubernetes")
    assert (code, f"the cluster refuses Deployment numl: {said}" in err) == (1, True)
    assert terminal.cluster.names() == set()


def test_a_quota_that_the_old_pods_fill_does_not_keep_an_upgrade_from_being_tried(
    terminal: Terminal,
) -> None:
    said = 'pods "numl-" is forbidden: exceeded quota: q, requested: requests.cpu=2'
    assert terminal.type("up --engine kubernetes")[0] == 0
    terminal.cluster.refuse = lambda each: said if each["kind"] == "Pod" else None
    assert terminal.type(f"up --engine kubernetes --image {IMAGE}")[0] == 0
    assert terminal.type("down")[0] == 0
    code, _, err = terminal.type("up --engine kubernetes")
    assert (code, "exceeded quota" in err) == (1, True)


def test_kinds_that_the_cluster_lacks_are_named_before_anything_is_made(
    terminal: Terminal,
) -> None:
    file = CHECKOUT / "deploy" / "sites" / "okd.toml"
    code, _, err = terminal.type(f"up {file}")
    assert (code, "the cluster has no route.openshift.io, and the values ask for Route" in err) == (
        *(1, True),
    )
    assert terminal.cluster.names() == set()


def test_what_helm_has_installed_is_left_alone(terminal: Terminal) -> None:
    terminal.type("up --engine kubernetes")
    for each in terminal.cluster.of_kind("Service").values():
        each["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"
    code, _, err = terminal.type("up --engine kubernetes")
    assert (code, "Service numl in namespace physics was made by Helm" in err) == (1, True)


def test_one_name_is_not_on_a_host_and_in_a_cluster(terminal: Terminal) -> None:
    terminal.type("up --engine kubernetes")
    code, _, err = terminal.type("up --engine local")
    assert (code, "a cluster runs deployment numl" in err) == (2, True)


# What is wrong with a cluster.


def test_doctor_tells_of_rights_secrets_and_gpus_that_are_missing(terminal: Terminal) -> None:
    file = terminal.site('flavour = "gpu"\n[kubernetes]\nnamespace = "physics"\nvalues = ["gpu"]\n')
    terminal.cluster.denied = {("delete", "deployments"), ("create", "pods")}
    node = {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {}}}
    terminal.cluster.objects["/api/v1/nodes/n"] = node
    code, out, _ = terminal.type(f"doctor {file}")
    text = " ".join(out.split())
    assert code == 1
    for said in (
        "namespace physics of site answers: Kubernetes v1.20.2",
        "this user may not delete deployments (apps) in namespace physics of site",
        "this user may not create pods/exec in namespace physics of site",
        "the values name Secret numl-tls, which namespace physics lacks",
        "none of 1 nodes has 1 nvidia.com/gpu",
    ):
        assert said in text


def test_doctor_finds_nothing_wrong_with_a_good_cluster(terminal: Terminal) -> None:
    code, out, _ = terminal.type(f"doctor {terminal.site('')}")
    assert (code, out.splitlines()[-1]) == (0, "0 problems, 0 warnings")


def test_a_namespace_that_is_missing_and_a_cluster_that_is_away_are_named(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = terminal.type("up --engine kubernetes --namespace nowhere")
    assert (code, "the cluster has no namespace nowhere" in err) == (1, True)
    file = terminal.folder / "away"
    write_kubeconfig(file, "http://127.0.0.1:1")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    code, _, err = terminal.type("up --engine kubernetes")
    assert (code, "http://127.0.0.1:1 does not answer: Connection refused" in err) == (1, True)


def test_the_clients_that_are_not_installed_are_named_with_what_installs_them(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "helm_python", None)
    code, _, err = terminal.type("up --engine kubernetes --dry-run")
    assert code == 1
    assert "try: scripts/kit-environment --kubernetes" in err
