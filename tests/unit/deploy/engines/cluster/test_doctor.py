"""What is wrong with a cluster."""

from __future__ import annotations

import sys

import pytest

from tests.api_server import write_kubeconfig
from tests.unit.deploy.engines.cluster.terminal import Terminal


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
