"""A deployment in a cluster is asked whether it answers rightly, and whose image it runs."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from deploy.host.paths import CHECKOUT
from tests.api_server import Object, container, ready
from tests.cosign import Cosign
from tests.kit import free_ports, until
from tests.unit.deploy.engines.cluster.terminal import DIGEST, IMAGE, Terminal


@pytest.fixture
def cosign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cosign:
    return Cosign.install(tmp_path / "bin", monkeypatch)


def test_the_image_that_the_pods_run_is_verified(terminal: Terminal, cosign: Cosign) -> None:
    assert terminal.type(f"up --engine kubernetes --image {IMAGE}")[0] == 0
    code, out, err = terminal.type(f"smoke --verify {cosign.key}")
    assert (code, "ok: 3 models give their reference answers" in out) == (0, True)
    assert f"signed by the owner of {cosign.key}: {IMAGE}" in err
    assert [words[0] for words in cosign.asked] == ["verify", *["verify-attestation"] * 2]
    assert {words[-1] for words in cosign.asked} == {IMAGE}


@pytest.mark.parametrize(
    ("words", "image"),
    [
        ("", "numlkit/numl:24.10-serving"),
        ("--image registry.example.org/numl:24.10", "registry.example.org/numl:24.10"),
    ],
)
def test_only_an_image_by_its_digest_comes_up_verified(
    words: str, image: str, terminal: Terminal, cosign: Cosign
) -> None:
    code, _, err = terminal.type(f"up --engine kubernetes {words} --verify {cosign.key}")
    cause, remedy = err.splitlines()
    assert code == 2
    assert f"--verify needs an image by its digest, not {image}" in cause
    assert "--image HOST/REPOSITORY@sha256:..." in remedy
    assert cosign.asked == []


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("", f"repository: registry.example.org/lab/numl, digest: '{DIGEST}'"),
        ("--image registry.example.org/lab/numl:24.10", f"digest: '{DIGEST}'"),
        (f"--image {IMAGE}", f"digest: 'sha256:{'cd' * 32}'"),
    ],
)
def test_what_is_verified_is_what_the_pods_name_whoever_says_it(
    words: str, values: str, terminal: Terminal, cosign: Cosign
) -> None:
    (terminal.folder / "image.yaml").write_text(f"image: {{{values}}}\n")
    file = terminal.site('[kubernetes]\nvalues = ["image.yaml"]\n')
    code, _, err = terminal.type(f"up {file} {words} --verify {cosign.key}")
    assert (code, err.splitlines()[0]) == (0, f"signed by the owner of {cosign.key}: {IMAGE}")
    assert {words[-1] for words in cosign.asked} == {IMAGE}
    assert {pod["images"]["triton"] for pod in terminal.json("status")["pods"]} == {IMAGE}


def test_a_tag_counts_as_what_the_nodes_have_pulled(terminal: Terminal, cosign: Cosign) -> None:
    def pulled(pod: Object) -> Object:
        status = ready(pod)
        digest = f"docker-pullable://registry.example.org/lab/numl@{DIGEST}"
        status["containerStatuses"][0]["imageID"] = digest
        return status

    terminal.cluster.pod = pulled
    terminal.type("up --engine kubernetes --image registry.example.org/lab/numl:24.10")
    assert terminal.type(f"smoke --verify {cosign.key}")[0] == 0
    assert {words[-1] for words in cosign.asked} == {IMAGE}


def test_pods_that_run_what_the_key_has_not_signed_are_refused(
    terminal: Terminal, cosign: Cosign
) -> None:
    terminal.type(f"up --engine kubernetes --image {IMAGE}")
    cosign.refuse({"verify": "Error: no signatures found"})
    code, _, err = terminal.type(f"smoke --verify {cosign.key}")
    assert (code, err.splitlines()[0]) == (1, f"error: {IMAGE} is not signed")


def test_what_runs_beside_a_server_is_verified_too_but_not_what_others_add(
    terminal: Terminal, cosign: Cosign
) -> None:
    other = "registry.example.org/lab/numl@sha256:" + "cd" * 32
    foreign = "registry.example.org/mesh/proxy:1"

    def edited(pod: Object) -> Object:
        pod["spec"]["containers"].append({"name": "proxy", "image": foreign})
        status = ready(pod)
        [_, watch, _] = status["containerStatuses"]
        watch["imageID"] = other
        return status

    terminal.cluster.pod = edited
    (terminal.folder / "more.yaml").write_text("watch: {enabled: true}\n")
    file = terminal.site('[kubernetes]\nvalues = ["more.yaml"]\n')
    assert terminal.type(f"up {file} --image {IMAGE}")[0] == 0
    terminal.type(f"smoke --verify {cosign.key}")
    assert {words[-1] for words in cosign.asked} == {IMAGE, other}


@pytest.mark.parametrize("said", [DIGEST, f"docker://{DIGEST}", "numl:24.10"])
def test_a_node_that_does_not_say_the_digest_is_named(
    said: str, terminal: Terminal, cosign: Cosign
) -> None:
    def silent(pod: Object) -> Object:
        main = pod["spec"]["containers"][0]
        status = container(main["name"], "numl:24.10", {"running": {}}, imageID=said)
        return {**ready(pod), "containerStatuses": [status]}

    terminal.cluster.pod = silent
    terminal.type("up --engine kubernetes --image registry.example.org/lab/numl:24.10")
    code, _, err = terminal.type(f"smoke --verify {cosign.key}")
    cause, remedy = err.splitlines()
    assert code == 1
    assert f"its node does not report which image it pulled: {said}" in cause
    assert "--image HOST/REPOSITORY@sha256:... --verify" in remedy
    assert cosign.asked == []


def test_without_pods_nothing_is_verified(terminal: Terminal, cosign: Cosign) -> None:
    terminal.type(f"up --engine kubernetes --image {IMAGE}")
    for path in list(terminal.cluster.of_kind("Pod")):
        del terminal.cluster.objects[path]
    code, _, err = terminal.type(f"smoke --verify {cosign.key}")
    assert (code, err.splitlines()[0]) == (1, "error: no pod of numl is ready")


def test_a_watch_needs_an_address_or_the_chart_s_own(terminal: Terminal) -> None:
    terminal.type("up --engine kubernetes")
    code, _, err = terminal.type("smoke --watch")
    cause, remedy = err.splitlines()
    assert code == 2
    assert cause.startswith("error: numl has no address in its deployment file")
    assert "--url" in remedy
    assert "watch.enabled" in remedy


@pytest.mark.slow
def test_a_watch_asks_at_the_address_in_the_deployment_file(terminal: Terminal) -> None:
    file = terminal.site('models = ["nugraph3"]\n[kubernetes]\nurl = "http://127.0.0.1:1"\n')
    assert terminal.type(f"up {file}")[0] == 0
    port = free_ports().metrics
    watch = subprocess.Popen(
        [sys.executable, "deploy/smoke.py", "--watch", "1", "--metrics", str(port)],
        cwd=CHECKOUT,
        env={**os.environ, "KUBECONFIG": str(terminal.folder / "kubeconfig")},
    )

    def told() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    labels = 'model="nugraph3",server="http://127.0.0.1:1",state="unreachable"'
    try:
        until(lambda: f"numl_smoke_state{{{labels}}} 1.0" in told(), 120, "the watch")
        watch.terminate()
        assert watch.wait(60) == 0
    finally:
        watch.kill()
        watch.wait()
