"""A deployment comes up in a cluster, is upgraded, fails, and goes again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.deployment.state import DeploymentFolder
from deploy.engines.pods import read_pod
from deploy.host.paths import CHECKOUT
from tests.api_server import Cluster, Object, container
from tests.unit.deploy.engines.cluster.terminal import IMAGE, Terminal, waiting


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
    terminal.cluster.health = (1, "model nugraph3 gives wrong answers")
    code, _, err = terminal.type("smoke")
    assert (code, f"pod {pod['name']}: model nugraph3 gives wrong answers" in err) == (1, True)

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
    assert (code, "container triton exited with status 1: " in err) == (1, True)
    assert "pynuml" in err


def test_the_words_are_those_of_the_container_that_crashes(terminal: Terminal) -> None:
    def crashed(pod: Object) -> Object:
        server, beside = pod["spec"]["containers"]
        name = pod["metadata"]["name"]
        terminal.cluster.logs[name, "triton", False] = "all is well here\n"
        terminal.cluster.logs[name, beside["name"], True] = "watch: cannot listen on port 8004\n"
        state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
        last = {"terminated": {"exitCode": 2, "reason": "Error"}}
        counted = {"restartCount": 2, "lastState": last}
        good = container(server["name"], server["image"], {"running": {}}, restartCount=0)
        return {"containerStatuses": [good, container("watch", beside["image"], state, **counted)]}

    (terminal.folder / "more.yaml").write_text("watch: {enabled: true}\n")
    terminal.cluster.pod = crashed
    file = terminal.site('[kubernetes]\nvalues = ["more.yaml"]\n')
    code, _, err = terminal.type(f"up {file}")
    said = "container watch exited with status 2: watch: cannot listen on port 8004"
    assert (code, said in err) == (1, True)


def test_the_words_are_not_those_of_another_that_was_restarted_more_often(
    terminal: Terminal,
) -> None:
    def crashed(pod: Object) -> Object:
        server, beside = pod["spec"]["containers"]
        name = pod["metadata"]["name"]
        terminal.cluster.logs[name, "triton", True] = "cannot listen on port 8000\n"
        terminal.cluster.logs[name, "watch", True] = "watch: ended long ago\n"
        last = {"lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}}
        state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
        looping = container("triton", server["image"], state, restartCount=3, **last)
        runs = container("watch", beside["image"], {"running": {}}, restartCount=5, **last)
        return {"containerStatuses": [looping, runs]}

    (terminal.folder / "more.yaml").write_text("watch: {enabled: true}\n")
    terminal.cluster.pod = crashed
    file = terminal.site('[kubernetes]\nvalues = ["more.yaml"]\n')
    code, _, err = terminal.type(f"up {file}")
    said = "container triton exited with status 1: cannot listen on port 8000"
    assert (code, said in err) == (1, True)


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
        "spec": {"containers": [{"name": "triton", "image": IMAGE}]},
        "status": {"containerStatuses": [status]},
    }
    found = read_pod(pod)
    assert found.problem == "container triton exited with status 137 (OOMKilled)"
    assert found.lasting is lasting


def test_what_no_node_takes_is_waited_for_until_the_cluster_gives_up(terminal: Terminal) -> None:
    said = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    unschedulable = {"type": "PodScheduled", "status": "False", "message": said}
    terminal.cluster.pod = lambda _: {"conditions": [unschedulable]}
    terminal.cluster.gave_up = True
    code, _, err = terminal.type("up --engine kubernetes")
    assert (code, f"no node can take it: {said}" in err, "kubectl describe nodes" in err) == (
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


def test_a_server_that_runs_out_of_memory_is_to_get_more(terminal: Terminal) -> None:
    # As a real node of little memory has said it.
    def killed(pod: Object) -> Object:
        main = pod["spec"]["containers"][0]
        shell = '/opt/numl/bin/serve: line 100: 9 Killed "$triton/bin/tritonserver" --model...'
        terminal.cluster.logs[pod["metadata"]["name"], "triton", True] = f"{shell}\n"
        state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
        last = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
        counted = {"restartCount": 2, "lastState": last}
        return {"containerStatuses": [container("triton", main["image"], state, **counted)]}

    terminal.cluster.pod = killed
    code, _, err = terminal.type("up --engine kubernetes --memory 48MiB")
    *_, cause, remedy = err.splitlines()
    assert (code, cause.partition(": pod ")[2].partition(": ")[2], remedy) == (
        1,
        "container triton exited with status 137 (OOMKilled)",
        "  try: a larger --memory, or value resources.limits.memory",
    )


def test_a_container_that_was_ended_is_explained_by_what_liveness_said(terminal: Terminal) -> None:
    # As a real kubelet has said it of a server whose model process was killed.
    terminal.type("up --engine kubernetes")
    [pod] = terminal.cluster.of_kind("Pod").values()
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    runs = container("triton", IMAGE, {"running": {}}, restartCount=1, lastState=ended)
    pod["status"] = {"containerStatuses": [runs]}

    def problem() -> str:
        [problem] = [each for each in terminal.json("status")["problems"] if "pod numl-" in each]
        return str(problem).partition(": ")[2]

    name = pod["metadata"]["name"]
    terminal.cluster.event(name, "Startup probe failed: the server does not listen yet")
    assert problem() == "container triton exited with status 1"
    terminal.cluster.event(name, "Liveness probe failed: a model process has died: pid 44")
    terminal.cluster.event(name, "Readiness probe failed: ")
    why = "Liveness probe failed: a model process has died: pid 44"
    assert problem() == f"container triton exited with status 1: {why}"


def test_an_upgrade_that_fails_leaves_the_old_pods_and_says_how_to_go_back(
    terminal: Terminal,
) -> None:
    assert terminal.type(f"up --engine kubernetes --image {IMAGE}")[0] == 0
    terminal.cluster.pod = waiting("ImagePullBackOff", "not found")
    code, _, err = terminal.type("up --engine kubernetes --image registry.example.org/lab/numl:new")
    assert code == 1
    assert (
        "the old pods keep serving; to go back, run up with the previous settings "
        f"(--image {IMAGE})" in err
    )
    state = terminal.json("status")
    assert [pod["ready"] for pod in state["pods"] if pod["image"] == IMAGE] == [True]
    terminal.cluster.pod = Cluster().pod
    assert terminal.type(f"up --engine kubernetes --image {IMAGE}")[0] == 0
    assert [pod["image"] for pod in terminal.json("status")["pods"]] == [IMAGE]


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
    assert (code, "the cluster has no route.openshift.io, but the values ask for Route" in err) == (
        *(1, True),
    )
    assert terminal.cluster.names() == set()


def test_what_helm_has_installed_is_left_alone(terminal: Terminal) -> None:
    terminal.type("up --engine kubernetes")
    for each in terminal.cluster.of_kind("Service").values():
        each["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"
    code, _, err = terminal.type("up --engine kubernetes")
    assert (code, "Service numl in namespace physics was created by Helm" in err) == (1, True)


def test_one_name_is_not_on_a_host_and_in_a_cluster(terminal: Terminal) -> None:
    terminal.type("up --engine kubernetes")
    code, _, err = terminal.type("up --engine local")
    assert (code, "a cluster runs deployment numl" in err) == (2, True)
