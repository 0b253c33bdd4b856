"""The rendered pod, started by podman: a Pod from YAML on a real container runtime.

podman knows neither `medium: Memory` nor an emptyDir that everybody may write to, and takes ports
for the host's: those are what the test changes. Users are the image's; probes are run by the test.
"""

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from deploy.deployment.deployment import DEFAULT_MODELS
from tests.chart import SITES, find, render
from tests.kit import until
from tests.programs import run_program

CONFIGURATION = """
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
"""
CONTAINER = "numl-triton"


@dataclass(frozen=True)
class Podman:
    """podman with its own settings and images."""

    folder: Path

    def __call__(self, *words: str, stdin: int | None = None) -> subprocess.CompletedProcess[str]:
        return run_program(
            ["podman", f"--root={self.folder}/root", f"--runroot={self.folder}/run", *words],
            env={**os.environ, "CONTAINERS_CONF": str(self.folder / "containers.conf")},
            stdin=stdin,
        )


@pytest.fixture
def podman():
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        podman = Podman(Path(folder))
        (podman.folder / "containers.conf").write_text(CONFIGURATION)
        yield podman
        podman("system", "reset", "--force")


def test_the_rendered_pod_gives_every_golden_answer(podman, image):
    with subprocess.Popen(["docker", "save", image.tag], stdout=subprocess.PIPE) as save:
        assert save.stdout is not None
        loaded = podman("load", "--quiet", stdin=save.stdout.fileno())
    assert loaded.returncode == 0, loaded.stderr
    template = find(render(SITES["laptop"]), "Deployment")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"]["name"] = "numl"
    [container] = pod["spec"]["containers"]
    container["image"] = f"localhost/{image.tag}"
    container["imagePullPolicy"] = "Never"
    del container["ports"]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        Path(memory).chmod(0o1777)
        for volume in pod["spec"]["volumes"]:
            if volume["name"] == "shm":
                volume["hostPath"] = {"path": memory, "type": "Directory"}
                del volume["emptyDir"]
        manifest = podman.folder / "pod.yaml"
        manifest.write_text(yaml.safe_dump(pod))
        started = podman("kube", "play", "--network=none", str(manifest))
        assert started.returncode == 0, started.stderr
        ready = container["readinessProbe"]["exec"]["command"]
        until(lambda: podman("exec", CONTAINER, *ready).returncode == 0, "the pod")
        said = podman("exec", CONTAINER, "/opt/numl/bin/health").stdout
        assert said == f"healthy: {', '.join(DEFAULT_MODELS)} gave their golden answers\n"
        # What kubelet would enforce, podman takes from the same lines.
        status = podman("exec", CONTAINER, "cat", "/proc/1/status").stdout
        lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert int(lines["CapEff"], 16) == int(lines["CapBnd"], 16) == 0
        assert (lines["NoNewPrivs"], lines["Seccomp"]) == ("1", "2")
        assert podman("exec", CONTAINER, "touch", "/opt/x").returncode != 0
        ended = podman("kube", "down", str(manifest))
        assert ended.returncode == 0, ended.stderr
